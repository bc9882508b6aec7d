"""The parts of a verdict: fits, expected exponents, causes, batches and losses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from orderone.core.errors import code_of
from orderone.measure.fit import Fit, fit_exponent, fit_exponents
from orderone.measure.judge.causes import Context, likely_causes
from orderone.measure.judge.verdict import (
    Expected,
    Judgement,
    Reason,
    Verdict,
    verdict_on_fit,
    without_cancellation,
)
from orderone.measure.runs import same_schedule
from orderone.observe.batches import is_batch, read_batches, usual_loss
from orderone.observe.quantities import Quantity

NAN = math.nan
LAW = Expected(-0.5, two_sided=True)
BOUND = Expected(0.0, bound=0.0)
PREDICTED_GROWTH = Expected(0.5, bound=0.0)
ROUGH = Expected(0.0, two_sided=True, rough=True)
WITNESS = Expected(-0.5, two_sided=True, soft=True)
RANGE = Expected(0.0, bound=0.0, least=-0.5)
DEEP = Expected(bound=0.0, margin=0.1)


@pytest.mark.parametrize(
    ("exponent", "bound", "words"),
    [(0.5, 0.0, "grows"), (-0.5, -1.0, "shrinks"), (0.0, -1.0, "shrinks"), (0.5, -1.0, "grows")],
)
def test_a_size_that_shrinks_too_little_does_not_grow(exponent, bound, words):
    fit = Fit(exponent, exponent - 0.1, exponent + 0.1)
    assert verdict_on_fit(fit, Expected(bound, bound=bound)).cause.startswith(words)


@pytest.mark.parametrize(
    ("exponent", "reach", "expected", "verdict"),
    [
        (-0.5, 0.1, LAW, "PASS"),
        (-0.3, 0.1, LAW, "PASS"),
        (-0.5, 0.6, LAW, "UNCLEAR"),  # the next half is in the interval
        (0.0, 0.1, LAW, "FAIL"),
        (-1.0, 0.1, LAW, "FAIL"),
        (0.0, 0.6, LAW, "UNCLEAR"),  # so is the expected one
        (0.5, 0.9, LAW, "UNCLEAR"),  # an interval this wide says nothing
        (0.0, 0.1, WITNESS, "UNCLEAR"),  # which sign-like optimizers do not feel
        (0.5, 0.1, ROUGH, "PASS"),
        (0.9, 0.1, ROUGH, "FAIL"),
        (0.0, 0.1, BOUND, "PASS"),
        (0.2, 0.2, BOUND, "PASS"),
        (0.2, 0.4, BOUND, "UNCLEAR"),
        (0.3, 0.2, BOUND, "UNCLEAR"),  # small networks may be on their way
        (0.5, 0.2, BOUND, "FAIL"),
        (-0.2, 0.1, BOUND, "PASS"),
        (-0.4, 0.1, BOUND, "SHRINKS"),
        (-0.9, 0.1, Expected(NAN, bound=0.0), "PASS"),  # no exponent is predicted
        (-0.6, 0.1, RANGE, "SHRINKS"),
        (-0.9, 0.1, RANGE, "FAIL"),
        (-0.9, 0.2, RANGE, "SHRINKS"),  # alignment may explain it
        (0.33, 0.11, DEEP, "FAIL"),
        (0.33, 0.3, DEEP, "UNCLEAR"),
        (0.05, 0.1, DEEP, "PASS"),
        (0.15, 0.1, PREDICTED_GROWTH, "FAIL"),
        (0.15, 0.2, PREDICTED_GROWTH, "UNCLEAR"),
        (0.02, 0.01, PREDICTED_GROWTH, "UNCLEAR"),
    ],
)
def test_verdicts(exponent, reach, expected, verdict):
    fit = Fit(exponent, exponent - reach, exponent + reach)
    finding = verdict_on_fit(fit, expected)
    assert finding.verdict == verdict
    assert bool(finding.cause) == (verdict != "PASS")
    assert (finding.reason == Reason.PREDICTED_GROWTH) == (expected is PREDICTED_GROWTH)


def line(
    module: str,
    quantity: str,
    exponent: float,
    predicted: float,
    role: str = "hidden",
    cause: str = "x",
):
    return Judgement(
        module,
        Quantity(quantity),
        0,
        exponent,
        exponent - 0.1,
        exponent + 0.1,
        predicted,
        Verdict.FAIL,
        cause,
        role,
    )


@pytest.mark.parametrize(
    ("lines", "context", "code", "words"),
    [
        ([line("w", "learning rate", 0.0, -1.0)], {}, "lr-not-scaled", "w scale like n^+0.00"),
        (
            [
                line("w", "learning rate", 0.0, -1.0),
                line("r", "learning rate", 0.0, -1.0, "readout"),
            ],
            {},
            "standard-parameterization",
            "not mup",
        ),
        (
            [line("e", "learning rate", -1.0, 0.0, "embedding")],
            {"tied": True},
            "lr-not-scaled",
            "tied weights: embedding",
        ),
        (
            [line("r", "learning rate", 0.0, -1.0, "readout")],
            {},
            "readout-not-scaled",
            "rates of r",
        ),
        (
            [line("b", "learning rate", -1.0, 0.0, "vector")],
            {},
            "lr-not-scaled",
            "biases and gains",
        ),
        ([line("w", "decay", -1.0, 0.0)], {}, "decay-not-scaled", "shrinks w"),
        ([line("w", "penalty", 0.5, 0.0)], {}, "decay-not-scaled", "penalty of w"),
        ([line("w", "weight", 0.0, -0.5)], {}, "wrong-initial-size", "w scales like n^+0.00"),
        (
            [line("r", "output", 0.0, -0.5, "readout")],
            {},
            "readout-not-scaled",
            "initial size of r scales like n^+0.00; mup requires n^-0.50",
        ),
        (
            [
                replace(line("h", "output", 0.6, 0.0), bound=0.0),
                line("r", "output", -0.2, -0.5, "readout"),
            ],
            {"inputs": {"h": 0.6}},
            "growing-activations",
            "the input of module 'h' grows like n^+0.60",
        ),
        (
            [line("a", "score change", 0.5, 0.0, "attention")],
            {},
            "attention-not-scaled",
            "scores of a grow like n^+0.50",
        ),
        ([line("w", "change", 0.9, 0.0)], {"schedule_fault": "A"}, "broken-schedule", "A"),
        ([line("w", "change", 0.9, 0.0)], {"no_growth": True}, "same-shapes", "build"),
        ([line("w", "change", 0.9, 0.0)], {"base_is_target": True}, "base-equals-target", "base"),
        ([line("w", "change", 0.9, 0.0)], {"undone": ["divide"]}, "unfinished-plan", "divide"),
        (
            [line("h", "change", 0.9, 0.0)],
            {"axis": "depth", "unscaled_branches": True},
            "unscaled-branches",
            "depth='sqrt'",
        ),
        ([line("h", "change", 0.9, 0.0)], {"axis": "depth"}, "unscaled-branches", "L^+0.90"),
        ([line("h", "change", 0.9, 0.0)], {"deeper": True}, "unscaled-branches", "n^+0.90"),
        (
            [line("w", "learning rate", 0.0, -1.0, "hidden")],
            {"one_rate": True, "scheduled": True},
            "standard-parameterization",
            "rates of w do not change with the width as mup requires (one rate for all tensors and"
            " sizes); or the schedule",
        ),
        (
            [
                line("w", "weight", 0.0, -0.5),
                replace(line("q", "multiplier", 0.5, 0.0), multiplier=0.5),
            ],
            {},
            "wrong-initial-size",
            "w scales like n^+0.00",
        ),
        (
            [replace(line("h", "change", 0.9, 0.5), reason=Reason.PREDICTED_GROWTH)],
            {},
            "rule-predicts-growth",
            "theory n^+0.50, measured n^+0.90",
        ),
        (
            [replace(line("w", "update", NAN, NAN), reason=Reason.FROZEN, cause="no gradient")],
            {},
            "frozen-tensor",
            "w: no gradient",
        ),
        ([line("", "change", -0.9, 0.0, "")], {}, "shrinking-output", "the change of the model"),
        (
            [line("r", "change", 0.9, 0.0, "readout")],
            {},
            "readout-not-scaled",
            "the change of module 'r'",
        ),
        (
            [line("w", "change", 0.9, 0.0)],
            {},
            "growing-activations",
            "the change of module 'w' is the first",
        ),
    ],
)
def test_causes(lines, context, code, words):
    (cause,) = likely_causes(lines, Context("mup", **context))
    assert code_of(cause) == code
    assert words in cause


@pytest.mark.parametrize(
    ("start", "change", "verdict"),
    [
        ("PASS", "SHRINKS", "UNCLEAR"),
        ("PASS", "PASS", "UNCLEAR"),
        ("PASS", "FAIL", "FAIL"),
        ("FAIL", "PASS", "FAIL"),
        ("PASS", None, "FAIL"),
    ],
)
def test_an_output_grows_only_if_its_start_or_its_change_does(start, change, verdict):
    lines = [
        replace(line("h", "output", 0.0, 0.0), verdict=Verdict(start)),
        replace(line("h", "output", 0.4, 0.0), step=4),
    ]
    if change:
        lines.append(replace(line("h", "change", -0.3, 0.0), step=4, verdict=Verdict(change)))
    assert without_cancellation(lines)[1].verdict == verdict


def test_a_wrong_learning_rate_is_not_reported_again_as_a_wrong_decay():
    lines = [line("w", "learning rate", 0.0, -1.0), line("w", "decay", 1.0, 0.0)]
    assert [code_of(cause) for cause in likely_causes(lines, Context("mup"))] == ["lr-not-scaled"]


def test_without_failures_there_is_no_cause():
    assert likely_causes([], Context("mup", one_rate=True)) == []


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ([1.0, 0.5, 0.25], [2.0, 1.0, 0.5], True),
        ([1.0, 0.5], [2.0, 0.9], False),
        ([0.0, 1.0, 2.0], [0.0, 3.0, 6.0], True),
        ([0.0, 1.0], [0.5, 1.0], False),
        ([], [], True),
        ([1.0, 1e-100, 5e-324], [0.3, 3e-101, 0.0], True),
        ([1.0, 1e-100, 1e-3], [0.3, 3e-101, 0.0], False),
    ],
)
def test_schedules_are_compared_between_sizes(first, second, same):
    assert same_schedule(first, second) is same


X, Y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize("batch", [X, {"x": X}, (X, Y), ((X, X), Y), ({"x": X}, Y), (X,)])
def test_values_that_are_a_batch(batch):
    assert is_batch(batch)
    assert read_batches(batch, 3) == [batch] * 3


@pytest.mark.parametrize("other", [[X, Y], (5, Y), (X, Y, Y), "x", 3, None, ((X, Y), (X, Y))])
def test_values_that_are_no_batch(other):
    assert not is_batch(other)


def test_lists_of_a_loader_are_pairs_and_the_same_ones_are_one_batch():
    batches = read_batches([[X, Y] for _ in range(3)], 3)
    assert all(batch is batches[0] for batch in batches)
    assert isinstance(batches[0], tuple)
    assert batches[0] is not read_batches([[X.clone(), Y] for _ in range(3)], 3)[1]


def test_the_usual_loss():
    logits = torch.randn(2, 3, 5)
    target = torch.randint(0, 5, (2, 3))
    assert usual_loss(logits, target) == pytest.approx(
        torch.nn.functional.cross_entropy(logits.view(6, 5), target.view(6)).item()
    )
    assert usual_loss(X, X + 1) == pytest.approx(1.0)


def test_fits_of_many_rows_equal_single_fits():
    widths = torch.tensor([64, 128, 256]).repeat(4).numpy()
    sizes = torch.rand(5, 12, generator=torch.Generator().manual_seed(0)).numpy() + 0.5
    for row, fit in zip(sizes, fit_exponents(widths, sizes), strict=True):
        single = fit_exponent(widths, row, correction=False)
        assert (fit.exponent, fit.low, fit.high) == pytest.approx(
            (single.exponent, single.low, single.high)
        )


def test_few_points_on_a_line_by_chance_have_the_noise_of_the_others():
    widths = torch.tensor([64, 128, 256, 512]).numpy()
    noise = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).mul(0.1)
    noise[0] *= 0.1  # by chance
    fits = fit_exponents(widths, noise.exp().numpy())
    assert sorted(fit.high - fit.low for fit in fits)[4] == pytest.approx(
        fits[0].high - fits[0].low
    )


def test_a_row_without_noise_is_exact_beside_noisy_ones():
    """The output of a norm has the same size with every seed: its few points lie on a line."""
    widths = torch.tensor([16.0, 32, 64])
    rows = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).mul(0.1).exp()
    rows[0] = (1 - 1e-5 / widths) / widths  # eps of a norm leaves a little
    fit = fit_exponents(widths.numpy(), rows.numpy())[0]
    assert fit.high - fit.low < 0.01
    assert verdict_on_fit(fit, Expected(-1.0, two_sided=True)).verdict == "PASS"
    assert verdict_on_fit(fit, Expected(-0.5, two_sided=True)).verdict == "FAIL"


@pytest.mark.parametrize("sizes", [3, 4, 7])
def test_noise_passes_for_a_law_in_one_of_a_thousand_studies(sizes):
    """One of a thousand rows would be 21 studies here."""
    widths = (2.0 ** torch.arange(4, 4 + sizes)).numpy()
    noise = torch.randn(1000, 21, sizes, generator=torch.Generator().manual_seed(0)).mul(0.1)
    narrow = 0
    for rows in noise.exp().numpy():
        reaches = np.array([fit.high - fit.low for fit in fit_exponents(widths, rows)])
        narrow += int((reaches < np.median(reaches) * (1 - 1e-6)).any())
    assert narrow <= 5


def test_a_deviation_that_fades_at_large_sizes_does_not_fail():
    widths = torch.tensor([32.0, 64, 128, 256]).repeat(2).numpy()
    law = (widths / 32) ** 0.5
    fading = 1 / (1 + 200 * widths**-1.5)
    as_law, as_fading = fit_exponents(widths, [law, fading])
    expected = Expected(0.0, two_sided=True)
    assert as_law.upper == pytest.approx(0.5)
    assert as_fading.exponent > 0.25 > as_fading.upper
    assert verdict_on_fit(as_law, expected).verdict == "FAIL"
    assert verdict_on_fit(as_fading, expected).verdict == "UNCLEAR"


def test_predicted_growth_that_weakens_does_not_vanish():
    fit = Fit(0.6, 0.4, 0.8, upper=0.1)
    finding = verdict_on_fit(fit, Expected(2.0, bound=0.0))
    assert (finding.verdict, finding.reason) == ("UNCLEAR", Reason.PREDICTED_GROWTH)
    assert "n^+2.00 is predicted" in finding.cause
    assert "vanish" not in finding.cause
    unpredicted = verdict_on_fit(fit, BOUND)
    assert (unpredicted.verdict, unpredicted.reason) == ("UNCLEAR", Reason.FADES)
