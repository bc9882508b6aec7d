"""Judges never crash on damaged records: verdicts on missing parts and on nan are unclear."""

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from orderone.gallery import EXPERIMENTS, Picture, load
from orderone.gallery.judge import known
from orderone.gallery.store import SHIPPED

HELD = [
    (name, scale)
    for name in EXPERIMENTS
    for scale in ("small", "gpu")
    if (SHIPPED / name / scale).is_dir()
]
# Measured columns; the other columns are settings.
MEASURED = {
    "s0-table2": ["measured", "low", "high"],
    "s0-table3": ["measured", "low", "high"],
    "s0-alignment": ["measured", "low", "high"],
    "s0-logits": ["value"],
    "s0-equivalence": ["apart"],
    "s1-figure1": ["mean", "q", "c", "growth_low", "growth_high"],
    "s1-figure2": ["g_aa", "g_ab", "abs_g_ab", "rate", "low", "high", "mean", "noise"],
    "s1-figure3": ["g_aa", "l1_g_ab", "rate", "low", "high"],
    "s1-figure4": ["near", "far", "power", "low", "high", "growth_low", "growth_high"],
    "s1-figure5": ["ratio", "power", "low", "high"],
    "s1-table1": ["rate", "low", "high"],
    "s1-signals": ["q_aa", "q_aa_var", "c_ab", "c_ab_var"],
    "s1-figure7": ["accuracy"],
    "s2-figure1": ["accuracy"],
    "s2-figure2": ["accuracy"],
    "s2-figure3": ["loss", "train"],
    "s2-figure4": ["loss", "train"],
    "s2-figure5": ["loss", "train"],
    "s2-kernels": ["mean", "std", "error", "measured"],
    "s3-convergence": ["centre", "spread", "error"],
    "s3-figure1": ["distance", "low", "high"],
    "s3-resnet": ["value", "noise"],
    "s3-shaped": ["distance", "low", "high"],
}


@pytest.fixture(scope="module")
def shipped():
    loaded = {}

    def one(name, scale):
        if (name, scale) not in loaded:
            loaded[name, scale] = load(EXPERIMENTS[name], scale, SHIPPED)
        return loaded[name, scale]

    return one


@pytest.mark.parametrize(("name", "scale"), HELD)
def test_a_part_that_is_missing_or_empty_is_named(shipped, name, scale):
    whole = shipped(name, scale)
    part = next(reversed(whole.records))
    for records in (
        {key: frame for key, frame in whole.records.items() if key != part},
        {key: frame.iloc[:0] if key == part else frame for key, frame in whole.records.items()},
        {},
    ):
        half = replace(whole, records=records)
        (finding,) = half.findings
        assert finding.holds is None
        assert part in finding.numbers
        assert half.verdict == "unclear"
        assert half.pictures == ()


@pytest.mark.filterwarnings("ignore:Mean of empty slice")  # medians of pandas 2
@pytest.mark.parametrize(("name", "scale"), [each for each in HELD if each[0] in MEASURED])
def test_verdicts_on_nan_are_unclear(shipped, name, scale):
    whole = shipped(name, scale)
    spoiled = {
        part: frame.assign(**{column: np.nan for column in MEASURED[name] if column in frame})
        for part, frame in whole.records.items()
    }
    result = replace(whole, records=spoiled)
    assert [f.claim for f in result.findings if f.holds is not None] == []
    for picture in result.pictures:
        if isinstance(picture, Picture):
            go.Figure(picture.figure)


@pytest.mark.parametrize("name", ["s2-figure2", "s2-figure4", "s2-figure5"])
def test_one_seed_does_not_decide_which_strategy_is_better(shipped, name):
    whole = shipped(name, "small")
    one = {part: frame[frame.seed == frame.seed.min()] for part, frame in whole.records.items()}
    result = replace(whole, records=one)
    decided = [f.claim for f in result.findings if f.holds is not None]
    assert all("same for" in claim for claim in decided)  # learning rates do not depend on seeds
    assert result.pictures


def test_known_numbers():
    assert known([1.0, 2.0], [0])
    assert not known([])
    assert not known([1.0], [np.nan])
    assert not known([np.inf])
