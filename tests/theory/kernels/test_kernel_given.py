"""What users may get wrong, and what they read then."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

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
    ("call", "message"),
    [
        (
            lambda: inputs([1.0, 2.0]),
            r"X: expected shape \(inputs, features\).*got \(2,\).*X\[None\]",
        ),
        (lambda: inputs(np.empty((0, 3))), "X: .*empty"),
        (lambda: inputs([[1.0, np.nan]]), "X: expected finite"),
        (lambda: inputs("abc"), "X: expected"),
        (lambda: inputs([[1e200, 1.0]]), "X: .*divide"),
        (
            lambda: covariance([[1.0, 2.0], [2.0, 1.0]]),
            "K: expected a positive semidefinite matrix.*eigenvalue -1",
        ),
        (lambda: covariance([[1.0, 0.5], [0.4, 1.0]]), "K: expected a symmetric matrix.*0.1"),
        (lambda: covariance([[1.0, 0.5]]), r"K: expected shape .*got \(1, 2\).*kernels.inputs"),
        (lambda: covariance(np.eye(2), np.eye(3)), "ntk: expected the shape"),
        (
            lambda: covariance(np.eye(2), -np.eye(2)),
            "ntk: expected variances on the diagonal, got -1",
        ),
        (
            lambda: covariance([[1e14, -1.0], [-1.0, -1e-4]]),
            "K: expected variances on the diagonal",
        ),
        (lambda: covariance(np.ones((2, 3, 3, 2))), "K: expected shape"),
        (lambda: Dense(-1.0), "weight_var: expected a finite number of at least 0; got -1.0"),
        (lambda: Dense(1.0, float("nan")), "bias_var: expected a finite number"),
        (lambda: Dense(cast(Any, "2")), "weight_var: expected a finite number"),
        (lambda: Dropout(0.0), "keep .*above 0"),
        (lambda: Dropout(1.5), "keep .*at most 1"),
        (lambda: Activation("rleu"), "unknown activation.*did you mean 'relu'"),
        (lambda: RMSNorm(-1e-5), "eps: expected"),
        (
            lambda: Sequential(Dense(), "relu"),  # pyright: ignore[reportArgumentType]
            "Sequential: layer 2: expected a Layer, got 'relu'; give kernels.Dense",
        ),
        (lambda: repeat(Dense(), -1), "times: expected a whole number"),
        (lambda: repeat("relu", 3), "layer: expected a Layer"),  # pyright: ignore[reportArgumentType]
        (
            lambda: Residual(Activation("relu")),
            "Residual: expected a branch .*ends in Activation.*Dense",
        ),
        (lambda: Residual(), "Residual: .*no layer"),
        (lambda: Residual(Dropout(0.5)), "Residual: expected a branch"),
        (lambda: Residual(Dense(), scale=np.inf), "scale: expected a finite"),
        (lambda: Activation("relu")(inputs(X)), "expected Gaussian neurons.*put kernels.Dense"),
        (
            lambda: Sequential(Dense(), Dropout(0.5), Activation("relu"))(inputs(X)),
            "expected Gaussian neurons",
        ),
        (lambda: AveragePool()(inputs(X)), "AveragePool: expected inputs that have tokens"),
        (lambda: Dense()(X), "(?s)kernel: expected a Kernel.*start with kernels.inputs"),  # pyright: ignore[reportArgumentType]
        (lambda: LayerNorm()(inputs(np.ones((2, 3)))), "variance is 0.*eps=1e-5"),
        (
            lambda: Residual(AveragePool(), Dense())(inputs(X[None])),
            "keeps the number of points.*pool behind",
        ),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def refusal(make):
    """The message of a ValueError; no other error passes. Kernels that come instead must hold
    numbers."""
    try:
        made = make()
    except ValueError as error:
        return str(error)
    assert not isinstance(made, Kernel) or not np.isnan(made.nngp).any()
    return "nothing: what was expected came"


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


def test_what_was_given_is_not_changed():
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


def test_kernels_say_what_they_hold():
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
