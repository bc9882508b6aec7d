"""Arrays of any shape, single precision, torch tensors, and every form of an activation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refuses

from orderone.theory import activations
from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian import readable

NAMES = activations.names()


@pytest.mark.parametrize("name", NAMES)
def test_shapes_broadcast(name):
    phi = activations.get(name)
    result = phi.output_gap(np.array([[0.5], [2.0]]), 1.0, np.array([0.1, 0.4, 1.2]))
    assert result.shape == (2, 3)
    assert result[1, 2] == pytest.approx(phi.output_gap(2.0, 1.0, 1.2), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_stays_single(name):
    phi, gap = activations.get(name), np.array([1e-7, 0.1, 1.0], np.float32)
    single = phi.output_gap(np.float32(1.5), np.float32(1.5), gap)
    assert single.dtype == np.float32
    assert single == pytest.approx(phi.output_gap(1.5, 1.5, gap.astype(float)), rel=2e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_stay_tensors(name, dtype):
    phi, gap = activations.get(name), torch.tensor([0.05, 0.7, 1.9], dtype=dtype)
    q = torch.ones(3, dtype=dtype)
    for average in (phi.pair, phi.derivative_pair, phi.output_gap):
        result = average(q, q, gap)
        assert isinstance(result, torch.Tensor)
        assert result.dtype == dtype
        assert result.numpy() == pytest.approx(
            average(1.0, 1.0, gap.double().numpy()), rel=1e-4, abs=1e-6
        )
    for values in (phi(gap), phi.derivative(gap)):
        assert isinstance(values, torch.Tensor)


def test_names():
    assert {
        "linear",
        "relu",
        "tanh",
        "erf",
        "hard-tanh",
        "gelu",
        "silu",
        "sigmoid",
        "sin",
        "softplus",
    } < set(NAMES)
    assert (
        activations.get("Hard_Tanh") is activations.get("hardtanh") is activations.get("hard-tanh")
    )
    assert activations.get("leaky-relu(0.2)").derivative(-1.0) == pytest.approx(0.2)
    tanh = activations.get("tanh")
    assert activations.get(tanh) is tanh


GIVEN = {
    "tanh": [
        np.tanh,
        math.tanh,
        torch.tanh,
        torch.nn.Tanh(),
        lambda x: 1 - 2 / (np.exp(2 * x) + 1),
    ],
    "relu": [
        lambda x: np.maximum(x, 0),
        lambda x: x * (x > 0),
        torch.relu,
        lambda x: x if x > 0 else 0.0,
    ],
    "hard-tanh": [lambda x: np.clip(x, -1, 1), torch.nn.Hardtanh()],
    "gelu": [torch.nn.functional.gelu],
    "elu": [lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))],
    "sin": [np.sin],
    "step": [lambda x: np.heaviside(x, 0.5)],
    "polynomial(0, 1, 0, 0.5)": [lambda x: x + 0.5 * x**3],
    "softplus": [lambda x: np.log1p(np.exp(x))],
}


@pytest.mark.parametrize(("name", "f"), [(name, f) for name, fs in GIVEN.items() for f in fs])
def test_functions_equal_their_named_kin(name, f):
    phi, kin, gap = activations.get(f), activations.get(name), np.array([1e-6, 0.3, 1.5])
    for q in (0.3, 2.0):
        assert phi.second_moment(q) == pytest.approx(kin.second_moment(q), rel=1e-12)
        assert phi.derivative_moment(q) == pytest.approx(kin.derivative_moment(q), rel=1e-10)
        assert phi.output_gap(q, q, gap) == pytest.approx(kin.output_gap(q, q, gap), rel=1e-9)
        assert phi.derivative_pair(q, q, gap) == pytest.approx(
            kin.derivative_pair(q, q, gap), rel=1e-9
        )


def clipped_in_place(x):
    return np.maximum(x, 0, out=x)


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (torch.nn.ReLU(inplace=True), "relu"),
        (torch.nn.Hardtanh(inplace=True), "hard-tanh"),
        (torch.tanh_, "tanh"),
        (clipped_in_place, "relu"),
    ],
)
def test_functions_that_write_to_their_argument(f, name):
    """They wrote to the nodes of the quadrature, which other activations share."""
    trial = readable.TRIAL.copy()
    phi, kin = activations.get(f), activations.get(name)
    for _ in range(2):
        assert phi.second_moment(0.7) == pytest.approx(kin.second_moment(0.7), rel=1e-12)
        assert phi.pair(1.0, 1.0, 0.5) == pytest.approx(kin.pair(1.0, 1.0, 0.5), rel=1e-9)
    np.testing.assert_array_equal(readable.TRIAL, trial)
    x = np.array([-1.0, 2.0])
    phi(x)
    np.testing.assert_array_equal(x, [-1.0, 2.0])


def test_kinks_and_jumps_are_found_anywhere():
    phi = activations.get(lambda x: np.where(x > 0.3, x, 0) + np.abs(x + 1.7))
    assert isinstance(phi, Numeric)
    assert phi.kinks == pytest.approx((-1.7, 0.3), abs=1e-10)
    assert phi.derivative_moment(1.0) == math.inf
    x, y = (
        np.random.default_rng(1).multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], size=400_000).T
    )
    samples = phi(x) * phi(y)
    assert phi.pair(1.0, 1.0, 0.5) == pytest.approx(
        samples.mean(), abs=5 * samples.std() / len(samples) ** 0.5
    )
    h = 1e-5
    slope = (phi.pair(1.0, 1.0, 0.5 - h) - phi.pair(1.0, 1.0, 0.5 + h)) / (2 * h)
    assert phi.derivative_pair(1.0, 1.0, 0.5) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(
    "f", ["tanh", "hard-tanh", "selu", lambda x: x**3 + np.clip(x - 0.3, -1, 1)]
)
def test_a_batch_equals_its_members(f):
    """A long signal is far from the kinks, but its neighbours in the batch
    are not."""
    phi, q = activations.get(f), np.array([1e-6, 1.0, 1e20])
    assert phi.second_moment(q) == pytest.approx([phi.second_moment(each) for each in q], rel=1e-13)
    assert phi.derivative_moment(q) == pytest.approx(
        [phi.derivative_moment(each) for each in q], rel=1e-12
    )


def test_fast_growth():
    phi = activations.get(np.exp)
    q = np.array([0.1, 1.0, 10.0, 50.0])
    assert phi.second_moment(q) == pytest.approx(np.exp(2 * q), rel=1e-11)
    assert phi.second_moment(400.0) == math.inf
    assert phi.output_gap(1.0, 1.0, 0.1) == pytest.approx(-math.expm1(-0.1), rel=1e-12)


def test_a_derivative_of_the_user_is_used():
    phi = activations.get(np.tanh, derivative=lambda x: 0 * x + 2.0)
    assert phi.derivative_moment(1.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("f", "code", "argument", "words"),
    [
        (lambda x: x.sum(), "not-elementwise", "activation", ""),
        (lambda x: x[:3], "not-elementwise", "activation", ""),
        (lambda x: np.stack([x, x]), "not-elementwise", "activation", "elementwise"),
        (np.sqrt, "invalid-argument", "activation", "-6.1"),
        (lambda x: "text", "invalid-argument", "activation", "numbers"),
        (lambda: 0.0, "wrong-type", "activation", ""),
        (lambda x: np.sin(1e5 * x), "unresolved-function", "activation", ""),
        ("tahn", "unknown-name", "activation", "mean 'tanh'"),
        ("relu(2)", "invalid-argument", "activation", "relu takes"),
        ("elu(1, 2, 3)", "invalid-argument", "activation", "takes fewer"),
        ("elu(x)", "invalid-argument", "activation", "brackets"),
        (3, "unknown-name", "activation", "unknown activation"),
        (None, "unknown-name", "activation", "unknown activation"),
    ],
)
def test_invalid_activations(f, code, argument, words):
    with refuses(code, argument=argument) as caught:
        activations.get(f)
    assert words in str(caught.value)


def test_a_name_needs_no_derivative():
    with refuses("invalid-argument", argument="derivative"):
        activations.get("tanh", derivative=np.cos)


bad_lengths = st.one_of(
    st.floats(max_value=-1e-300),
    st.just(math.nan),
    st.just(math.inf),
    st.sampled_from(["x", None, [], [1, "a"]]),
)
bad_gaps = st.one_of(
    st.floats(max_value=-1e-9),
    st.floats(min_value=2.0001),
    st.just(math.nan),
    st.sampled_from(["x", None, []]),
)


@given(st.sampled_from(NAMES), bad_lengths)
def test_bad_lengths(name, q):
    phi = activations.get(name)
    for average in (phi.mean, phi.second_moment, phi.derivative_moment):
        with refuses("invalid-argument", argument="q"):
            average(q)
    with refuses("invalid-argument", argument="q2"):
        phi.pair(1.0, q, 0.5)


@given(st.sampled_from(NAMES), bad_gaps)
def test_bad_gaps(name, gap):
    phi = activations.get(name)
    for average in (phi.pair, phi.derivative_pair, phi.output_gap):
        with refuses("invalid-argument", argument="gap"):
            average(1.0, 1.0, gap)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x - x.mean(),
        lambda x: x / np.sqrt((x**2).mean()),
        torch.nn.Softmax(-1),
        np.sort,
        np.cumsum,
        lambda x: x[::-1],
        lambda x: x + np.random.default_rng().normal(size=x.shape),
    ],
)
def test_functions_that_are_not_elementwise_are_refused(f):
    with refuses("not-elementwise", argument="activation"):
        activations.get(f)


def test_functions_of_one_number_may_be_vectorised():
    tanh = activations.get(np.vectorize(math.tanh))
    assert tanh.second_moment(1.0) == pytest.approx(
        activations.get("tanh").second_moment(1.0), rel=1e-12
    )
    relu = activations.get(
        np.vectorize(lambda x: x if x > 0 else 0)
    )  # the first value is a whole number
    assert relu.second_moment(3.0) == pytest.approx(1.5, rel=1e-12)
