"""Records of checks: the step whose update can be judged."""

import gc
import weakref

import pytest
import torch
from torch import nn

import orderone as o1
from orderone.measure.judge.resolution import without_turns
from orderone.measure.judge.verdict import Expected, Verdict, verdict_on_fit
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


def changing(*paths: tuple[float, ...]) -> Observations:
    """Return the changes of a module, step by step, at widths 8, 16, ..., with two seeds."""
    runs = []
    for number, path in enumerate(paths):
        for seed in range(2):
            rows = []
            for step, change in enumerate(path, 1):
                rows.append((step, "m", Quantity.CHANGE, of_size(change * (1 + 0.01 * seed))))
            runs.append(Run(8 * 2**number, seed, rows, steps=len(path)))
    return Observations("width", str, tuple(runs))


@pytest.mark.parametrize(
    ("paths", "verdict"),
    [
        # the last change grows because small models turn back after the second step
        (((1, 1.6, 0.9), (1, 1.6, 1.2), (1, 1.6, 1.6)), Verdict.UNCLEAR),
        # the first change does not grow, later ones do
        (((1, 1.1, 1.2), (1, 1.4, 1.7), (1, 2, 2.4)), Verdict.FAIL),
    ],
)
def test_changes_of_small_models_that_turn_back_are_no_growth(paths, verdict):
    observations = changing(*paths)
    [((name, quantity, step), fit)] = observations.fits([(Quantity.CHANGE, 3)], 0.99)
    expected = Expected(0.0, bound=0.0)
    finding = verdict_on_fit(fit, expected)
    assert finding.verdict == Verdict.FAIL
    found = without_turns(observations, (name, quantity, step), expected, finding, 0.99)
    assert found.verdict == verdict


def test_updates_of_half_precision_below_its_rounding_are_not_judged():
    """In bfloat16, updates below 2^-7 of a weight are rounding; the rate is judged all the same."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 4, (8,), generator=torch.Generator().manual_seed(1))

    def judged(precision: torch.dtype) -> set[str]:
        def build(width: int) -> nn.Module:
            layers = (nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            return nn.Sequential(*layers, nn.Linear(width, 4)).to(precision)

        check = o1.coord_check(
            build, [16, 32, 64], lr=1e-4, batches=(x.to(precision), y), steps=1, seeds=1
        )
        assert not check.unjudged
        assert check.verdict != Verdict.FAIL
        return {line.module for line in check.judgements if line.quantity == Quantity.UPDATE}

    assert "2.weight" in judged(torch.float32)
    assert "2.weight" not in judged(torch.bfloat16)


def test_exponents_of_alignment_are_those_of_its_tables():
    def build(width):
        return nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )

    batch = (torch.randn(32, 8), torch.arange(32) % 4)
    check = o1.coord_check(build, [16, 32, 64], lr=1e-2, batches=batch, seeds=1)
    by_layer, by_role = check.observations.alignment_exponents("alpha")
    table = check.alignment
    assert table is not None
    assert by_layer == pytest.approx(table.alpha)
    rows = [row for row in table.role_rows if row["quantity"] == "alpha"]
    assert by_role == pytest.approx({row["role"]: row["exponent"] for row in rows})


def test_models_do_not_outlive_their_run():
    """Reference cycles would keep every model, its gradients and its optimizer in memory."""
    models: list[weakref.ref[nn.Module]] = []
    alive: list[int] = []

    def build(width):
        alive.append(sum(model() is not None for model in models))
        model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
        models.append(weakref.ref(model))
        return model

    batch = (torch.randn(32, 8), torch.arange(32) % 4)
    gc.disable()
    try:
        check = o1.coord_check(build, [16, 32, 64], lr=1e-2, batches=batch, seeds=4)
    finally:
        gc.enable()
    assert check.passed
    assert max(alive) == 3  # the plan of each width has its first model
    kept = [model for reference in models if (model := reference()) is not None]
    assert all(tensor.grad is None for model in kept for tensor in model.parameters())
