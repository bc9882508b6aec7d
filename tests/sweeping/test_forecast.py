"""Forecast, collapse and quality of transfer studies, on curves with known laws."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from support.bowls import power_curves, sweep
from support.errors import refuses

from orderone.sweeping.collapse import COLLAPSES, PARTS, collapse
from orderone.sweeping.power_law import PowerLaw
from orderone.sweeping.transfer import Transfer

study = Transfer.from_frame
LAWS = {
    "slow": (1.2, 3.0, 0.3),
    "typical": (1.2, 3.0, 0.6),
    "1/width": (1.5, 10.0, 1.0),
    "no offset": (0.0, 5.0, 0.2),
    "flat": (2.0, 0.0, 1.0),
    "fast": (1.0, 50.0, 2.0),
}


def frame(law: tuple[float, float, float], **options) -> pd.DataFrame:
    offset, factor, power = law
    return sweep(level=lambda width: offset + factor * width**-power, **options)


# --- the power law --------------------------------------------------------------------------------


def law_of(losses: np.ndarray, widths=(64, 128, 256, 512, 1024), error: float = 0.01) -> PowerLaw:
    sizes = np.array(widths, float)[:, None]
    return PowerLaw(sizes, losses, np.full(len(losses), error**2), 8.0)


def test_an_exact_power_law_is_found():
    widths = np.array([64, 128, 256, 512, 1024.0])
    law = law_of(1.2 + 3 * widths**-0.6, error=1e-5)
    assert law.exponents[0] == pytest.approx(0.6, rel=0.03)
    assert law.coefficients[0] == pytest.approx(1.2, rel=0.01)
    assert law.at([4096.0]).value == pytest.approx(1.2 + 3 * 4096**-0.6, rel=1e-3)


def test_the_interval_is_that_of_a_constrained_optimizer():
    """A general optimizer finds the same ends: smallest and largest value with chi^2 <= limit."""
    rng = np.random.default_rng(0)
    widths = np.array([64, 128, 256, 512.0])
    losses = 1.2 + 3 * widths**-0.6 + 0.01 * rng.standard_normal(4)
    law = law_of(losses, widths.astype(int).tolist())
    found = law.at([2048.0])
    limit = law.chi2 + 2.306**2 * law.excess  # Student's t, 8 degrees of freedom

    def chi2(p):
        return (((losses - p[0] - p[1] * (widths / 64) ** -p[2]) / 0.01) ** 2).sum()

    for sign, end in ((1, found.low), (-1, found.high)):
        best = math.inf
        for start in ([1.2, 0.25, 0.6], [0.8, 0.6, 0.2], [1.3, 0.2, 1.5]):
            result = minimize(
                lambda p, sign=sign: sign * (p[0] + p[1] * 32.0 ** -p[2]),
                start,
                bounds=[(0, 5), (0, 5), (0.02, 4)],
                constraints={"type": "ineq", "fun": lambda p: limit - chi2(p)},
            )
            if result.success:
                best = min(best, result.fun)
        assert sign * end == pytest.approx(best, abs=2e-3)


def test_a_law_in_size_and_tokens():
    rng = np.random.default_rng(0)
    sizes = np.array([(n, d) for n in (64, 128, 256, 512) for d in (1e6, 3e6, 9e6)])
    truth = lambda n, d: 1 + 4 * n**-0.5 + 90 * d**-0.4  # noqa: E731
    losses = truth(*sizes.T) + 1e-3 * rng.standard_normal(len(sizes))
    value = PowerLaw(sizes, losses, np.full(len(sizes), 1e-6), 12.0).at([1024.0, 3e7])
    assert value.low <= truth(1024, 3e7) <= value.high
    assert value.high - value.low < 0.1


# --- calibration ----------------------------------------------------------------------------------


def coverage(law: str, number: int, **options) -> float:
    """Return the share of intervals that contain the loss of four times the largest width."""
    offset, factor, power = LAWS[law]
    rng = np.random.default_rng(list(LAWS).index(law))
    inside: list[bool] = []
    for _ in range(number):
        t = study(frame(LAWS[law], rng=rng, **options))
        size = 4 * t.optima["mup"][-1].size
        value = t.forecast(width=size)
        inside.append(value.low <= offset + factor * size**-power <= value.high)
    return float(np.mean(inside))


@pytest.mark.parametrize("law", LAWS)
def test_the_interval_of_a_forecast_contains_the_truth(law):
    assert coverage(law, 20) >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("widths", [(64, 128, 256), (64, 128, 256, 512, 1024)])
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_coverage_of_forecasts(law, widths, seeds):
    assert coverage(law, 300, widths=widths, seeds=seeds) >= 0.92


def test_more_data_makes_a_forecast_narrower():
    few = study(frame(LAWS["typical"], widths=(64, 128, 256), seeds=2)).forecast(width=4096)
    many = study(frame(LAWS["typical"], widths=(64, 128, 256, 512, 1024), seeds=6))
    several = many.forecast(width=4096)
    assert several.high - several.low < (few.high - few.low) / 2


def test_a_law_that_breaks_is_noticed():
    """Beyond width 256 the loss stays the same: the forecast of the largest width fails."""
    broken = sweep(level=lambda width: 1 + 20 / min(width, 256), widths=(32, 64, 128, 256, 2048))
    check = study(broken).forecast(width=8192).check
    assert check is not None
    assert not check.held
    healthy = study(frame(LAWS["typical"])).forecast(width=2048).check
    assert healthy is not None
    assert healthy.held


# --- what is missing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainings", "arguments", "code", "argument"),
    [
        (sweep(widths=(64, 128)), {}, "needs-more-sizes", "width"),
        (sweep(best=-20.0), {}, "needs-more-sizes", "width"),
        (sweep(seeds=1), {}, "needs-more-seeds", "seed"),
        (sweep(level=lambda width: 1 + 0.1 * np.log2(width)), {}, "loss-rises", "width"),
        (sweep(), {"tokens": 1e6}, "tokens-do-not-vary", "tokens"),
        (sweep().assign(tokens=1e5), {"tokens": 1e6}, "tokens-do-not-vary", "tokens"),
        (sweep(), {"tokens": -1}, "invalid-argument", "tokens"),
        (sweep(), {"rule": "sp"}, "unknown-name", "rule"),
    ],
)
def test_a_forecast_without_enough_data_is_refused(trainings, arguments, code, argument):
    with refuses(code, argument=argument):
        study(trainings).forecast(width=1024, **arguments)


def test_the_size_of_a_forecast_is_that_of_the_study():
    with refuses("invalid-argument", argument="width"):
        study(sweep()).forecast(depth=4)


def test_a_forecast_for_other_tokens_uses_all_lengths():
    rng = np.random.default_rng(0)
    parts = []
    for steps in (100, 300, 900):
        tokens = steps * 1000
        part = sweep(
            level=lambda n, tokens=tokens: 1 + 4 * n**-0.5 + 90 * tokens**-0.4, rng=rng, noise=5e-3
        )
        parts.append(part.assign(steps=steps, updates=steps, tokens=tokens))
    t = study(pd.concat(parts), where={"steps": 900})
    value = t.forecast(width=1024, tokens=3e6)
    assert value.low <= 1 + 4 * 1024**-0.5 + 90 * 3e6**-0.4 <= value.high
    assert "tokens^-" in str(value)
    assert t.forecast(width=1024).law.axes == 1


# --- quality --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_rules() -> Transfer:
    worse = frame((1.5, 3.0, 0.6), drift=-1.0, rule="standard", noise=1e-3)
    return study(pd.concat([frame(LAWS["typical"], noise=1e-3), worse]))


def test_measures_of_quality(two_rules):
    quality = two_rules.quality.set_index("rule")
    assert quality.loc["mup", "scatter"] < 0.1
    assert quality.loc["mup", "misfit"] > 0.01
    assert abs(quality.loc["mup", "left_out"]) < 0.2
    assert quality.loc["mup", "left_out_cost"] < 0.01
    assert abs(quality.loc["mup", "sharpening"]) < 0.2  # all bowls have the same bend
    assert quality.loc["standard", "behind"] == pytest.approx(0.3, abs=0.05)
    assert quality.loc["standard", "penalty_low"] <= 0.3 <= quality.loc["standard", "penalty_high"]
    assert not quality["missing"].any()


def test_quality_is_nan_with_a_reason_where_data_are_missing():
    record = study(sweep(widths=(64, 128), seeds=1)).quality.iloc[0]
    assert math.isnan(record["scatter"])
    assert math.isnan(record["penalty"])
    assert "[needs-more-sizes]" in record["missing"]


def test_bowls_that_narrow_with_the_width_are_seen():
    parts = []
    for width in (64, 128, 256, 512):
        parts.append(
            sweep(bowl=lambda d, a=0.02 * width / 64: a * d**2, widths=(width,), noise=1e-3)
        )
    assert study(pd.concat(parts)).quality["sharpening"].iloc[0] == pytest.approx(1, abs=0.15)


def test_a_kink_in_the_best_rate_does_not_fit_a_power_law():
    parts = []
    for width, best in ((64, -8.0), (128, -8.0), (256, -6.0), (512, -8.0)):
        parts.append(sweep(widths=(width,), best=best, noise=1e-3))
    assert study(pd.concat(parts)).quality["misfit"].iloc[0] < 0.01


def test_text_and_page_have_forecasts(two_rules):
    text = str(two_rules)
    assert "loss forecast for" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert str(two_rules.forecast(width=1024)).startswith("mup at width 1024: loss 1.")


# --- collapse -------------------------------------------------------------------------------------


def verdict(**options) -> str:
    curves = power_curves(**options)
    made = collapse("mup", curves, axis="width", lr=1e-3, offset=0.0, confidence=0.95)
    return made.verdict


def test_curves_of_one_shape_collapse():
    rng = np.random.default_rng(0)
    verdicts = [verdict(rng=rng) for _ in range(40)]
    assert verdicts.count(PARTS) <= 6  # 2 are nominal


def test_curves_of_other_shapes_part():
    rng = np.random.default_rng(0)
    assert {verdict(rng=rng, bend=0.02) for _ in range(10)} == {PARTS}


def test_the_place_where_curves_part_is_named():
    curves = power_curves(sizes=4, steps=400)
    for losses in curves[512]:
        losses[200:240] *= 1.2
    made = collapse("mup", curves, axis="width", lr=1e-3, offset=0.0, confidence=0.95)
    assert made.verdict == PARTS
    assert made.farthest == 512
    assert made.parts_at[0] == pytest.approx((0.5, 0.6))
    assert "50% to 60%" in " ".join(str(made).split())
    assert len(made.frame) == 4 * 16


def test_the_gap_is_that_where_curves_part():
    """Early windows differ more, but within the noise of seeds."""
    rng = np.random.default_rng(0)
    curves = power_curves(sizes=4, steps=400, noise=0.001)
    for several in curves.values():
        for losses in several:
            losses[:100] *= 1 + 0.5 * rng.random()
    for losses in curves[512]:
        losses[200:240] *= 1.1
    made = collapse("mup", curves, axis="width", lr=1e-3, offset=0.0, confidence=0.95)
    assert made.parts_at == (pytest.approx((0.5, 0.6)),)
    assert made.farthest == 512
    assert made.gap == pytest.approx(0.1 * 0.5 / 1.025, rel=0.02)  # deviation of (1, 1, 1, 1.1)
    assert made.noise < 0.2 * made.gap


def test_an_offset_that_all_sizes_share_is_subtracted():
    curves = power_curves(sizes=4)
    shifted = {size: [losses + 2 for losses in several] for size, several in curves.items()}
    keywords = {"axis": "width", "lr": 1e-3, "confidence": 0.95}
    assert collapse("mup", shifted, offset=0.0, **keywords).verdict == PARTS
    assert collapse("mup", shifted, offset=2.0, **keywords).verdict == COLLAPSES
    with refuses("invalid-argument", argument="offset"):
        collapse("mup", shifted, offset=9.0, **keywords)


@pytest.mark.parametrize(
    ("options", "code", "argument"),
    [
        ({"sizes": 1}, "needs-more-sizes", "width"),
        ({"seeds": 1}, "needs-more-seeds", "seed"),
        ({"sizes": 3, "seeds": 2}, "needs-more-seeds", "seed"),  # 15 divisions: p >= 1/15
        ({"steps": 15}, "history-too-short", "steps"),
    ],
)
def test_too_few_curves_are_refused(options, code, argument):
    with refuses(code, argument=argument):
        verdict(**options)


def with_histories(drift: float = 0.0) -> Transfer:
    trainings = sweep().assign(key=lambda table: [str(k) for k in range(len(table))])
    curves = power_curves(sizes=4, seeds=3, bend=drift)
    histories = {}
    for row in trainings.to_dict("records"):
        histories[row["key"]] = curves[row["width"]][row["seed"]]
    return study(trainings, histories=histories)


def test_a_study_with_loss_curves():
    t = with_histories()
    made = t.collapse()
    assert made.verdict == COLLAPSES
    assert made.lr == pytest.approx(2**-8)
    assert made.sizes == (64, 128, 256, 512)
    assert made.sentence in " ".join(str(t).split())
    other = with_histories(0.05)
    assert other.collapse().verdict != COLLAPSES
    assert other.collapse().sentence in " ".join(str(other).split())
    with refuses("invalid-argument", argument="lr"):
        t.collapse(lr=0.123)


def test_a_study_without_loss_curves():
    with refuses("needs-histories", argument="histories"):
        study(sweep()).collapse()
