"""Gap and slope of kernels against the averages of activations."""

import array_api_compat.numpy as xp
import numpy as np
import pytest
import torch

from orderone.theory import activations

LENGTHS = np.array([0.01, 0.5, 1.0, 1.3, 2.2])
GAPS = np.array([0.0, 1e-9, 1e-3, 0.2, 0.9, 1.0, 1.4, 1.99, 2.0])
FAST = (
    "linear",
    "relu",
    "abs",
    "leaky-relu",
    "erf",
    "gelu",
    "sin",
    "tanh",
    "sigmoid",
    "silu",
    "softplus",
)


def sides(phi, one, other, dtype=np.float64):
    found = phi.of_length(np.concatenate([one, other]), xp)
    left = tuple(v[: len(one), None, None].astype(dtype) for v in found)
    return left, tuple(v[None, len(one) :, None].astype(dtype) for v in found)


@pytest.mark.parametrize("name", FAST)
def test_unequal_lengths(name):
    phi, q1, q2 = activations.get(name), LENGTHS[:, None, None], LENGTHS[None, :, None]
    gap, slope = phi.gap_and_slope(
        *sides(phi, LENGTHS, LENGTHS), GAPS[None, None, :] + 0 * (q1 + q2), xp
    )
    ratio = np.sqrt(q1 * q2 / phi.second_moment(q1) / phi.second_moment(q2))
    assert gap == pytest.approx(phi.output_gap(q1, q2, GAPS), abs=2e-14)
    assert slope == pytest.approx(ratio * phi.derivative_pair(q1, q2, GAPS), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(
    "name", [name for name in FAST if name not in ("relu", "abs", "leaky-relu")]
)
def test_small_gaps_of_equal_lengths_keep_their_digits(name):
    phi, gaps = activations.get(name), 10.0 ** -np.arange(1, 16)
    for q in LENGTHS:
        one = tuple(v[:, None] for v in phi.of_length(np.array([q]), xp))
        gap, slope = phi.gap_and_slope(one, one, gaps[None], xp)
        assert gap[0] == pytest.approx(phi.output_gap(q, q, gaps), rel=1e-12)
        assert slope[0] == pytest.approx(
            q / phi.second_moment(q) * phi.derivative_pair(q, q, gaps), rel=1e-10
        )


def test_kinks_leave_the_root_of_a_gap_in_units_of_the_last_place():
    phi = activations.get("relu")
    for dtype, unit in ((np.float64, 2.3e-16), (np.float32, 1.2e-7)):
        gaps = (10.0 ** -np.arange(1, 13)).astype(dtype)
        gap, _ = phi.gap_and_slope((), (), gaps, xp)
        assert gap.dtype == dtype
        assert (
            np.abs(gap - phi.output_gap(1.0, 1.0, gaps.astype(float))) < 2 * unit * np.sqrt(gaps)
        ).all()


@pytest.mark.parametrize(("name", "q"), [("tanh", 20.0), ("hard-tanh", 1.0), ("elu", 2.0)])
def test_where_a_series_is_incomplete_near_pairs_are_averaged_over_the_plane(name, q):
    phi, gaps = activations.get(name), np.array([0.0, 1e-6, 0.02, 0.05, 0.3, 1.2, 1.97])
    one = tuple(v[:, None] for v in phi.of_length(np.array([q]), xp))
    gap, slope = phi.gap_and_slope(one, one, gaps[None], xp)
    assert gap[0] == pytest.approx(phi.output_gap(q, q, gaps), rel=1e-11)
    assert slope[0] == pytest.approx(
        q / phi.second_moment(q) * phi.derivative_pair(q, q, gaps), rel=1e-10
    )


def test_tensors_stay_tensors():
    import array_api_compat.torch as torch_namespace

    for name in ("relu", "erf", "tanh"):
        phi, q = activations.get(name), torch.tensor([0.5, 1.5], dtype=torch.float64)
        found = phi.of_length(q, torch_namespace)
        gap, slope = phi.gap_and_slope(
            tuple(v[:, None] for v in found),
            tuple(v[None, :] for v in found),
            torch.full((2, 2), 0.3, dtype=torch.float64),
            torch_namespace,
        )
        assert isinstance(gap, torch.Tensor)
        assert gap.dtype == slope.dtype == torch.float64
