"""One transfer study for each combination of the other settings of a sweep."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pandas
import pytest
from support.errors import refuses

from orderone.sweeping import Transfer, Transfers

RATES = [2.0**k for k in range(-12, -3)]
BEST = -8.0  # log2 of the best learning rate, at every width
OFFSET = {"keep": 1.0, "fan-in": 0.0}  # what the loss of a start adds


def _points(*others: list[object]) -> Iterator[tuple[Any, ...]]:
    return itertools.product([32, 64, 128], RATES, range(3), *others)


def trainings(**others: list[object]) -> pandas.DataFrame:
    """Return losses that are parabolas in log2(lr); some settings add a constant to the loss."""
    rows: list[dict[str, object]] = []
    names = list(others)
    for width, lr, seed, *values in _points(*others.values()):
        chosen = dict(zip(names, values, strict=True))
        start = OFFSET[str(chosen.get("init", "fan-in"))]
        noise = 1e-3 * math.sin(17 * seed + math.log2(lr) + width)
        loss = 2 + start + 0.05 * (math.log2(lr) - BEST) ** 2 + 8 / width + noise
        rows.append({"width": width, "lr": lr, "seed": seed, "loss": loss, **chosen})
    return pandas.DataFrame(rows)


def test_the_combination_with_the_lowest_loss_of_the_target_comes_first():
    frame = trainings(init=["keep", "fan-in"], weight_decay=[0.0, 0.1])
    several = Transfers.from_frame(frame)
    table = several.frame
    assert len(several.studies) == len(table) == 4
    assert list(table["init"]) == ["fan-in", "fan-in", "keep", "keep"]
    assert several.best.where == {"init": "fan-in", "weight_decay": 0.0}
    assert set(table["verdict"]) == {"transfers"}
    assert table["loss"].to_numpy() == pytest.approx(table["tuned"].to_numpy())
    assert table["loss"].tolist() == pytest.approx([2.0625, 2.0625, 3.0625, 3.0625], abs=2e-3)
    assert "weight_decay=0.1" in str(several)


def test_a_study_without_other_settings_is_the_usual_one():
    frame = trainings()
    several = Transfers.from_frame(frame)
    assert several.best.where == {}
    pandas.testing.assert_frame_equal(several.best.frame, Transfer.from_frame(frame).frame)


def test_the_carried_rate_decides_and_not_the_tuned_loss():
    """A start whose optimum moves is better if tuned, and worse with the rate of the base."""
    steady = trainings(init=["fan-in"])
    moving = trainings(init=["keep"])
    largest = moving["width"] == 128
    shifted = moving["lr"].map(lambda lr: 1.5 + 0.05 * (math.log2(lr) - BEST + 4) ** 2)
    moving.loc[largest, "loss"] = shifted[largest]
    several = Transfers.from_frame(pandas.concat([moving, steady]))
    table = several.frame.set_index("init")
    assert table.loc["keep", "tuned"] < table.loc["fan-in", "tuned"]
    assert table.loc["keep", "loss"] > table.loc["fan-in", "loss"]
    assert several.best.where == {"init": "fan-in"}


def test_several_learning_rates_and_both_sizes_vary():
    frame = trainings(depth=[1, 2]).rename(columns={"lr": "lr.embedding"})
    frame = pandas.concat([frame.assign(lr=rate) for rate in (1e-3, 2e-3)])
    several = Transfers.from_frame(frame)
    assert (several.best.axis, several.best.setting) == ("width", "lr.embedding")
    assert set(several.best.where) == {"depth", "lr"}
    assert len(several.studies) == 4


def test_a_combination_that_failed_is_named_and_the_others_are_studied():
    frame = trainings(init=["keep", "fan-in"]).assign(status="done")
    frame.loc[frame["init"] == "keep", "status"] = "failed"
    several = Transfers.from_frame(frame)
    assert [study.where for study in several.studies] == [{"init": "fan-in"}]
    assert list(several.failed) == ["init=keep"]
    with refuses("frame-without-rows"):
        Transfers.from_frame(frame[frame["init"] == "keep"])
