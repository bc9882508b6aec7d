"""The committed records of the real study agree with docs/transfer.md."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from orderone.sweeping.drift import MOVES, TRANSFERS, Drift
from orderone.sweeping.transfer import Transfer

DOCS = Path(__file__).parents[2] / "docs"
PAGE = " ".join((DOCS / "transfer.md").read_text().split())


@pytest.fixture(scope="module")
def records() -> pd.DataFrame:
    return pd.read_csv(DOCS / "results" / "transfer-gpt.csv")


@pytest.fixture(scope="module")
def studies(records) -> dict[str, Transfer]:
    return {
        str(start): Transfer.from_frame(part.drop(columns="start"))
        for start, part in records.groupby("start")
    }


def printed(*numbers: float, signed: bool = True) -> list[str]:
    return [f"{number:{'+' if signed else ''}.2f}".replace("-", "−") for number in numbers]


def drift(d: Drift) -> str:
    slope, low, high = printed(d.slope, d.low, d.high)
    return f"{slope} [{low}, {high}]"


def test_verdicts_and_drifts(studies):
    usual, fan_in = studies["0.02"].drift, studies["fan-in"].drift
    assert (usual["mup"].verdict, usual["standard"].verdict, fan_in["mup"].verdict) == (
        TRANSFERS,
        MOVES,
        TRANSFERS,
    )
    assert drift(usual["mup"]) in PAGE
    assert drift(usual["standard"]) in PAGE
    assert drift(fan_in["mup"]).removeprefix("+") in PAGE


def test_the_interval_of_one_rate_for_all_widths_excludes_the_prediction(studies):
    d = studies["0.02"].drift["standard"]
    assert d.predicted[0] == -1 < d.low
    assert "interval excludes −1" in PAGE
    steps = printed(*np.diff([o.x for o in studies["0.02"].optima["standard"]]))
    assert f"{', '.join(steps[:-1])} and {steps[-1]} octaves" in PAGE


def test_the_optima_in_the_table(studies):
    for rule, digits in (("mup", 5), ("standard", 5)):
        rates = [o.lr for o in studies["0.02"].optima[rule]]
        row = PAGE.split(f"`{rule}`, best lr |")[1].split("|")[: len(rates)]
        assert [float(cell) for cell in row] == [
            pytest.approx(rate, abs=0.5 * 10**-digits) for rate in rates
        ]


def test_the_settings_of_the_study(records):
    told = json.loads((DOCS / "results" / "transfer-gpt.json").read_text())
    for name, column in (
        ("widths", "width"),
        ("rules", "rule"),
        ("rates", "lr"),
        ("seeds", "seed"),
    ):
        assert sorted(told[name]) == sorted(records[column].unique())
    assert {told["steps"]} == set(records["steps"])
