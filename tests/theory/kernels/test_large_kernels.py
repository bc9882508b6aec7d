"""Kernels in strips: equal to those in memory, with little memory beside the result."""

import tracemalloc

import numpy as np
import pytest
from support.errors import refuses

from orderone import InputError
from orderone.theory import kernels

NET = kernels.Sequential(
    kernels.Dense(2.0, 0.1),
    kernels.Activation("relu"),
    kernels.Residual(kernels.LayerNorm(), kernels.Dense(1.5), kernels.Dropout(0.9)),
    kernels.Dense(1.0),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_to_kernels_in_memory(tmp_path, dtype):
    X = np.random.default_rng(0).standard_normal((700, 5)).astype(dtype)
    X[1] = X[0]
    expected = NET(kernels.inputs(X))
    ntk = np.empty((700, 700), dtype)
    found = kernels.write(NET, X, nngp=tmp_path / "nngp.npy", ntk=ntk)
    assert found.nngp is not None
    eps = 30 * np.finfo(dtype).eps
    np.testing.assert_allclose(found.nngp, expected.nngp, rtol=eps, atol=eps)
    np.testing.assert_allclose(ntk, expected.ntk, rtol=eps, atol=eps)
    np.testing.assert_array_equal(np.load(tmp_path / "nngp.npy"), found.nngp)
    assert found.ntk is ntk


def peak_memory(count: int) -> int:
    """Return the largest number of bytes in use beside inputs and result."""
    X = np.random.default_rng(0).standard_normal((count, 16)).astype(np.float32)
    net = kernels.Sequential(kernels.Dense(2.0), kernels.Activation("relu"), kernels.Dense(1.0))
    ntk = np.empty((count, count), np.float32)
    tracemalloc.start()
    kernels.write(net, X, ntk=ntk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_pairs():
    assert peak_memory(3000) < 3e7  # one array of this size has 3.6e7 bytes


@pytest.mark.slow
def test_20_000_inputs_need_less_than_a_gigabyte():
    assert peak_memory(20_000) < 2e8


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("net", lambda: kernels.write(kernels.AveragePool(), np.ones((3, 2)), ntk="x.npy")),
        ("X", lambda: kernels.write(NET, np.ones((3, 2, 2)), ntk="x.npy")),
        ("nngp", lambda: kernels.write(NET, np.ones((3, 2)))),
        ("ntk", lambda: kernels.write(NET, np.ones((3, 2)), ntk=np.ones((2, 2)))),
        ("ntk", lambda: kernels.write(NET, np.ones((3, 2)), ntk=__file__)),
    ],
)
def test_refusals(argument, call):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument


@pytest.mark.parametrize("kernel", ["nngp", "ntk"])
def test_tiles_are_parts_of_the_kernel(kernel, monkeypatch):
    monkeypatch.setattr("orderone.theory.kernels.large.PAIRS_HELD", 50)
    X = np.random.default_rng(0).standard_normal((60, 4))
    X[7] = X[3]
    expected = getattr(NET(kernels.inputs(X)), kernel)
    tile = kernels.tiles(NET, X, kernel)
    parts = [(0, 60, 0, 60), (3, 9, 20, 40), (20, 40, 3, 9), (5, 30, 10, 20), (7, 8, 3, 4)]
    for first, last, left, right in parts:
        found = tile(slice(first, last), slice(left, right))
        np.testing.assert_allclose(found, expected[first:last, left:right], rtol=1e-12, atol=1e-13)
    assert tile(slice(4, 4), slice(0, 3)).shape == (0, 3)
    with refuses("unknown-name", argument="kernel"):
        kernels.tiles(NET, X, "tangent")
    with refuses("invalid-argument", argument="net"):
        kernels.tiles(kernels.AveragePool(), X)
