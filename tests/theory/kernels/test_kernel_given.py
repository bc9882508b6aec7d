"""Errors about invalid inputs and layers of kernels."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.errors import refuses

from orderone.core.errors import InputError
from orderone.theory import kernels
from orderone.theory.kernels import (
    Activation,
    AveragePool,
    Dense,
    Dropout,
    Kernel,
    LayerNorm,
    Residual,
    RMSNorm,
    Sequential,
    covariance,
    inputs,
    repeat,
)

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("call", "code", "argument", "words"),
    [
        (
            lambda: inputs([1.0, 2.0]),
            "invalid-argument",
            "X",
            "(2,)",
        ),
        (lambda: inputs(np.empty((0, 3))), "invalid-argument", "X", "empty"),
        (lambda: inputs([[1.0, np.nan]]), "invalid-argument", "X", "finite"),
        (lambda: inputs("abc"), "invalid-argument", "X", "'abc'"),
        (lambda: inputs([[1e200, 1.0]]), "invalid-argument", "X", "divide"),
        (
            lambda: covariance([[1.0, 2.0], [2.0, 1.0]]),
            "not-a-covariance",
            "K",
            "eigenvalue -1",
        ),
        (lambda: covariance([[1.0, 0.5], [0.4, 1.0]]), "not-a-covariance", "K", "0.1"),
        (lambda: covariance([[1.0, 0.5]]), "invalid-argument", "K", "(1, 2)"),
        (lambda: covariance(np.eye(2), np.eye(3)), "invalid-argument", "ntk", ""),
        (
            lambda: covariance(np.eye(2), -np.eye(2)),
            "not-a-covariance",
            "ntk",
            "",
        ),
        (
            lambda: covariance([[1e14, -1.0], [-1.0, -1e-4]]),
            "not-a-covariance",
            "K",
            "variances on",
        ),
        (lambda: covariance(np.ones((2, 3, 3, 2))), "invalid-argument", "K", "shape"),
        (lambda: Dense(-1.0), "invalid-argument", "weight_var", "least 0"),
        (lambda: Dense(1.0, float("nan")), "invalid-argument", "bias_var", ""),
        (lambda: Dense(cast(Any, "2")), "invalid-argument", "weight_var", "a finite"),
        (lambda: Dropout(0.0), "invalid-argument", "keep", "above 0"),
        (lambda: Dropout(1.5), "invalid-argument", "keep", "most 1"),
        (lambda: Activation("rleu"), "unknown-name", "activation", "mean 'relu'"),
        (lambda: RMSNorm(-1e-5), "invalid-argument", "eps", ""),
        (
            lambda: Sequential(Dense(), "relu"),  # pyright: ignore[reportArgumentType]
            "wrong-type",
            "Sequential: layer 2",
            "layer 2",
        ),
        (lambda: repeat(Dense(), -1), "invalid-argument", "times", ""),
        (lambda: repeat("relu", 3), "wrong-type", "layer", ""),  # pyright: ignore[reportArgumentType]
        (
            lambda: Residual(Activation("relu")),
            "needs-dense-layer",
            "branch",
            "Activation",
        ),
        (lambda: Residual(), "needs-dense-layer", "branch", "no layer"),
        (lambda: Residual(Dropout(0.5)), "needs-dense-layer", "branch", "Residual"),
        (lambda: Residual(Dense(), scale=np.inf), "invalid-argument", "scale", ""),
        (lambda: Activation("relu")(inputs(X)), "needs-dense-layer", "kernel", "put kernels.Dense"),
        (
            lambda: Sequential(Dense(), Dropout(0.5), Activation("relu"))(inputs(X)),
            "needs-dense-layer",
            "kernel",
            "Gaussian neurons",
        ),
        (lambda: AveragePool()(inputs(X)), "needs-tokens", "kernel", ""),
        (lambda: Dense()(X), "wrong-type", "kernel", ""),  # pyright: ignore[reportArgumentType]
        (lambda: LayerNorm()(inputs(np.ones((2, 3)))), "zero-variance", "kernel", "eps=1e-5"),
        (
            lambda: Residual(AveragePool(), Dense())(inputs(X[None])),
            "invalid-argument",
            "branch",
            "",
        ),
    ],
)
def test_errors_say_what_to_do(call, code, argument, words):
    with refuses(code, argument=argument) as caught:
        call()
    assert words in str(caught.value)


def refusal(make):
    """Return the message of an InputError; without an error, a kernel must have no NaN."""
    try:
        made = make()
    except InputError as error:
        return str(error)
    assert not isinstance(made, Kernel) or not np.isnan(made.nngp).any()
    return "no error, as expected"


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.text(max_size=3),
    st.just(1j),
    st.just([]),
)


@settings(max_examples=60, deadline=None)
@given(ANYTHING, ANYTHING)
def test_numbers_are_taken_or_refused_with_a_value_error(one, other):
    for make in (
        lambda: Dense(one, other),
        lambda: Dropout(one),
        lambda: LayerNorm(one),
        lambda: RMSNorm(other),
    ):
        assert "expected" in refusal(make)


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float64, st.tuples(st.integers(0, 3), st.integers(0, 3)), elements=st.floats(width=64)
    )
)
def test_arrays_are_taken_or_refused_with_a_value_error(X):
    for make in (inputs, covariance):
        assert "expected" in refusal(lambda make=make: Dense(1.5, 0.1)(make(X)))


def test_inputs_are_not_changed():
    X = np.random.default_rng(0).normal(size=(30, 4))
    K = X @ X.T
    before = X.copy(), K.copy()
    k = inputs(X)
    gap = k.gap.copy()
    Sequential(Dense(), Dense(2.0, 0.1), Activation("relu"))(k)
    Dense()(covariance(K))
    assert (before[0] == X).all()
    assert (before[1] == K).all()
    assert (k.gap == gap).all()


def test_repr_of_kernels():
    assert repr(inputs(X)) == "Kernel(2 inputs, float64)"
    assert repr(inputs(X[None])) == "Kernel(1 inputs of 2 tokens, float64)"
    assert inputs(X[None]).variance.shape == (1, 2)
    assert repr(Sequential(Dense(2), Dropout(0.5))).startswith(
        "Sequential(layers=(Dense(weight_var=2.0, bias_var=0.0)"
    )


def test_tensors_with_gradients_are_read_quietly():
    """Kernels are numbers, not part of a graph: what is given is detached, and left as it was."""
    torch = pytest.importorskip("torch")
    X = torch.randn(3, 4, requires_grad=True)
    kernel = inputs(X)
    assert torch.equal(kernel.nngp, inputs(X.detach()).nngp)
    assert not kernel.nngp.requires_grad
    assert X.requires_grad
    assert not covariance(torch.eye(3, requires_grad=True)).nngp.requires_grad


def test_trained_is_a_truth_value():
    """A tensor of several numbers has none: torch raised a RuntimeError."""
    wrong: Any = np.ones(3)
    with refuses("wrong-type", argument="trained"):
        kernels.AddPositions(np.eye(2), trained=wrong)
