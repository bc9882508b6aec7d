"""The parts that a verdict is made of, each by itself."""

import math
from dataclasses import replace

import pytest
import torch

from orderone.measure.fit import Fit, fit_exponent, fit_exponents
from orderone.measure.judge.causes import Context, likely_causes
from orderone.measure.judge.expectations import Expected
from orderone.measure.judge.verdict import Judgement, Verdict, judge, without_cancellation
from orderone.measure.runs import ratios_kept
from orderone.observe.batches import is_batch, read_batches, usual_loss
from orderone.observe.quantities import Quantity

NAN = math.nan
LAW, BOUND = Expected(-0.5, law=True), Expected(0.0, allowed=0.0)
FORETOLD, ROUGH = Expected(0.5, allowed=0.0), Expected(0.0, law=True, rough=True)


@pytest.mark.parametrize(
    ("exponent", "reach", "expected", "quantity", "verdict"),
    [
        (-0.5, 0.1, LAW, "weight", "PASS"),
        (-0.3, 0.1, LAW, "weight", "PASS"),
        (-0.5, 0.6, LAW, "weight", "UNCLEAR"),  # the next half is in the interval
        (0.0, 0.1, LAW, "weight", "FAIL"),
        (-1.0, 0.1, LAW, "weight", "FAIL"),
        (0.0, 0.6, LAW, "weight", "UNCLEAR"),  # so is the expected one
        (0.5, 0.9, LAW, "weight", "UNCLEAR"),  # an interval this wide says nothing
        (0.0, 0.1, LAW, "gradient", "UNCLEAR"),  # which sign-like optimizers do not feel
        (0.5, 0.1, ROUGH, "update", "PASS"),
        (0.9, 0.1, ROUGH, "update", "FAIL"),
        (0.0, 0.1, BOUND, "change", "PASS"),
        (0.2, 0.2, BOUND, "change", "PASS"),
        (0.2, 0.4, BOUND, "change", "UNCLEAR"),
        (0.3, 0.2, BOUND, "change", "UNCLEAR"),  # small networks may be on their way
        (0.5, 0.2, BOUND, "change", "FAIL"),
        (-0.2, 0.1, BOUND, "change", "PASS"),
        (-0.4, 0.1, BOUND, "change", "SHRINKS"),
        (
            -0.9,
            0.1,
            Expected(NAN, allowed=0.0),
            "change",
            "PASS",
        ),  # nothing says how much it could be
        (0.15, 0.1, FORETOLD, "change", "FAIL"),
        (0.15, 0.2, FORETOLD, "change", "UNCLEAR"),
        (0.02, 0.01, FORETOLD, "change", "UNCLEAR"),
    ],
)
def test_verdicts(exponent, reach, expected, quantity, verdict):
    fit = Fit(exponent, exponent - reach, exponent + reach)
    assert judge(fit, expected, Quantity(quantity))[0] == verdict
    assert bool(judge(fit, expected, Quantity(quantity))[1]) == (verdict != "PASS")


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
    ("lines", "context", "words"),
    [
        (
            [line("w", "update", 0.0, -1.0)],
            {},
            "hidden learning rate: updates of w scale like n^+0.00",
        ),
        (
            [line("w", "update", 0.0, -1.0), line("r", "update", 0.0, -1.0, "readout")],
            {},
            "standard parameterization",
        ),
        (
            [line("e", "update", -1.0, 0.0, "embedding")],
            {"tied": True},
            "tied weights: embedding learning rate",
        ),
        ([line("w", "decay", -1.0, 0.0)], {}, "weight decay: a step shrinks w"),
        (
            [line("w", "weight", 0.0, -0.5)],
            {},
            "initial size of w: n^+0.00, and mup asks for n^-0.50",
        ),
        ([line("r", "output", 0.0, -0.5, "readout")], {}, "readout not scaled: initial size of r"),
        (
            [line("a", "score change", 0.5, 0.0, "attention")],
            {},
            "attention scale: scores of a grow",
        ),
        ([line("w", "change", 0.9, 0.0)], {"schedule": "eta_min"}, "schedule: eta_min"),
        ([line("w", "change", 0.9, 0.0)], {"no_growth": True}, "base equals target: every size"),
        (
            [line("w", "change", 0.9, 0.0)],
            {"base_is_target": True},
            "base equals target: every factor",
        ),
        (
            [line("h", "change", 0.9, 0.0)],
            {"in_depth": True, "unscaled_branches": True},
            "residual branches",
        ),
        (
            [line("w", "relative update", 0.5, 0.0)],
            {"wrong_start": lambda *_: (-1.0, -0.5)},
            "initial size of w: n^-1.00, and mup asks for n^-0.50",
        ),
        ([line("", "change", -0.9, 0.0, "")], {}, "the change of the model shrinks"),
        ([line("w", "change", 0.9, 0.0)], {}, "the change of w is the first to grow"),
    ],
)
def test_causes(lines, context, words):
    causes = likely_causes(lines, Context("mup", **context))
    assert len(causes) == 1
    assert causes[0].startswith(words)


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


def test_a_wrong_rate_is_not_told_again_as_a_wrong_decay():
    lines = [line("w", "update", 0.0, -1.0), line("w", "decay", 1.0, 0.0)]
    assert not any("decay" in cause for cause in likely_causes(lines, Context("mup")))


def test_nothing_wrong_has_no_cause():
    assert likely_causes([], Context("mup", one_rate=True)) == []


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ([{"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 0.25}], True),
        ([{"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 0.5}], False),
        ([{"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 0.499}], False),
        ([{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 0.5}, {"a": 2.0, "b": 1.0}], True),
        ([{"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.0}], True),
        ([{"a": 1.0, "b": 0.5, "c": 0.0}, {"a": 0.5, "b": 0.5, "c": 0.0}], False),
        ([], True),
    ],
)
def test_ratios_of_rates(rates, kept):
    assert ratios_kept(rates) is kept


X, Y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize("batch", [X, {"x": X}, (X, Y), ((X, X), Y), ({"x": X}, Y), (X,)])
def test_what_a_batch_is(batch):
    assert is_batch(batch)
    assert read_batches(batch, 3) == [batch] * 3


@pytest.mark.parametrize("other", [[X, Y], (5, Y), (X, Y, Y), "x", 3, None, ((X, Y), (X, Y))])
def test_what_a_batch_is_not(other):
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


def test_many_fits_are_the_single_ones():
    widths = torch.tensor([64, 64, 128, 128, 256, 256]).numpy()
    sizes = torch.rand(5, 6, generator=torch.Generator().manual_seed(0)).numpy() + 0.5
    for row, fit in zip(sizes, fit_exponents(widths, sizes), strict=True):
        single = fit_exponent(widths, row, correction=False)
        assert (fit.exponent, fit.low, fit.high) == pytest.approx(
            (single.exponent, single.low, single.high)
        )
