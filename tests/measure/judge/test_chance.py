"""The initial output of a readout has few random numbers: chance alone is no fault."""

import pytest
import torch

import orderone as o1
from orderone.measure.judge.resolution import beyond_chance
from orderone.measure.judge.verdict import Expected, Verdict, verdict_on_fit
from orderone.measure.observations import Observations
from orderone.measure.runs import Run
from orderone.observe.moments import Moments
from orderone.observe.quantities import Quantity

FEATURES = 4
SAMPLES = 16
STUDIES = 1500


def study(generator: torch.Generator, power: float = -0.5) -> Observations:
    """Return initial outputs of readouts whose inputs are the same in all samples."""
    runs = []
    for size in (16, 32, 64, 128):
        for seed in range(2):
            features = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
            squares = float(features.square().sum()) * SAMPLES * size ** (2 * power)
            outputs = Moments(FEATURES * SAMPLES, squares, 0.0, squares**0.5, 1.0)
            runs.append(Run(size, seed, [(0, "head", Quantity.OUTPUT, outputs)], steps=1))
    return Observations("width", str, tuple(runs))


def failures(power: float) -> tuple[int, int]:
    """Return how many studies fail, without and with chance."""
    generator = torch.Generator().manual_seed(0)
    failed = remaining = 0
    for _ in range(STUDIES):
        observations = study(generator, power)
        [(line, fit)] = observations.fits([(Quantity.OUTPUT, 0)], 0.99)
        finding = verdict_on_fit(fit, Expected(-0.5, two_sided=True))
        if finding.verdict == Verdict.FAIL:
            failed += 1
            found = beyond_chance(observations, line, fit.exponent + 0.5, FEATURES, finding)
            remaining += found.verdict == Verdict.FAIL
    return failed, remaining


def test_chance_fails_in_one_of_a_thousand_studies():
    failed, remaining = failures(-0.5)
    assert failed >= 5  # otherwise this tests nothing
    assert remaining <= 3


def test_a_whole_power_is_no_chance():
    failed, remaining = failures(0.5)
    assert failed >= STUDIES / 2
    assert remaining >= 0.98 * failed


@pytest.mark.parametrize("power", [-0.5, 0.5])
def test_a_readout_that_starts_wrong_fails_with_few_features(power):
    """Its initial weights are known without this chance: they have many entries."""

    def build(width):
        layers = [torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)]
        model = torch.nn.Sequential(*layers)
        growth = width / 16
        with torch.no_grad():
            model[2].weight *= growth ** (power - 0.5)
        rates = {"0.weight": 1, "0.bias": 1, "2.weight": 1 / growth, "2.bias": 1}
        groups = [{"params": [p], "lr": 1e-2 * rates[n]} for n, p in model.named_parameters()]
        return model, torch.optim.Adam(groups, eps=1e-12)

    x = torch.ones(16, 8) + 0.01 * torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    batch = (x, torch.arange(16) % 2)
    result = o1.coord_check(build, [16, 32, 64, 128], optimizer="adam", lr=1e-2, batches=batch)
    if power > 0:
        assert result.verdict == "FAIL", str(result)
        assert "2" in result.causes[0]
    else:  # a smaller start is allowed
        assert result.verdict != "FAIL", str(result)
