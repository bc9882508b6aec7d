"""Records of checks: the step whose update can be judged."""

import pytest

from orderone.measure.observations import Observations
from orderone.measure.runs import Run
from orderone.observe.moments import Moments
from orderone.observe.quantities import Quantity

WEIGHT = 0.1


def of_size(rms: float) -> Moments:
    return Moments(1, rms**2, rms, rms, 1.0)


def observed(*updates: float) -> Observations:
    """Return the records of a tensor with these updates, step by step, at two widths."""
    runs = []
    for size in (8, 16):
        rows = [(0, "w", Quantity.WEIGHT, of_size(WEIGHT))]
        for step, update in enumerate(updates):
            rows.append((step, "w", Quantity.GRADIENT, of_size(10 * update)))
            rows.append((step, "w", Quantity.UPDATE, of_size(update)))
        runs.append(Run(size, 0, rows, steps=len(updates)))
    return Observations("width", str, tuple(runs))


@pytest.mark.parametrize(
    ("updates", "first"),
    [
        ((1e-3, 1e-3), 0),
        ((0.0, 1e-3), 1),  # a warm-up that starts at zero
        ((0.0, 1e-12, 1e-3), 2),  # rounding of the weights is larger than the second update
        ((0.0, 1e-12), -1),
    ],
)
def test_the_first_update_is_larger_than_rounding(updates, first):
    assert observed(*updates).first_update("w", resolution=1e-7) == first
