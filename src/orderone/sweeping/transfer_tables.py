"""The tables of a transfer study: best learning rates by size, and drifts by rule."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from orderone.sweeping.drift import Drift
from orderone.sweeping.optimum import Optimum

if TYPE_CHECKING:
    from orderone.sweeping.transfer import Transfer

COLUMNS = (
    "rule",
    "size",
    "lr",
    "low",
    "high",
    "loss",
    "bend",
    "regret",
    "beyond",
    "seeds",
    "rates",
    "outside",
)
DRIFT_COLUMNS = (
    "rule",
    "drift",
    "low",
    "high",
    "predicted",
    "predicted_worst",
    "verdict",
    "why",
    "remedy",
)


def best_rates(study: "Transfer") -> pd.DataFrame:
    """Return one row per rule and size."""
    rows: list[tuple[object, ...]] = []
    for rule in study.rules:
        for k in range(len(study.optima[rule])):
            rows.append(_row(study, rule, k))
    return pd.DataFrame(rows, columns=list(COLUMNS)).rename(columns={"size": study.axis})


def _row(study: "Transfer", rule: str, k: int) -> tuple[object, ...]:
    best = study.optima[rule][k]
    curve = study.curves[rule][k]
    with np.errstate(over="ignore"):
        lr = float(2.0**best.x)
        low = float(2.0**best.low)
        high = float(2.0**best.high)
    return (
        rule,
        best.size,
        lr,
        low,
        high,
        best.loss,
        best.bend,
        study.regret(rule, k),
        best.beyond,
        best.seeds,
        len(curve.x),
        _outside(best),
    )


def _outside(best: Optimum) -> str:
    if best.open_below and best.open_above:
        return "both"
    if best.open_below:
        return "below"
    return "above" if best.open_above else ""


def drifts(by_rule: Mapping[str, Drift]) -> pd.DataFrame:
    """Return one row per rule."""
    rows: list[tuple[object, ...]] = []
    for drift in by_rule.values():
        interval = (drift.slope, drift.low, drift.high)
        words = (drift.verdict, drift.why, drift.remedy)
        rows.append((drift.rule, *interval, *drift.predicted, *words))
    return pd.DataFrame(rows, columns=list(DRIFT_COLUMNS))
