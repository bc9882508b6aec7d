"""A table of a paper as something to run: what the paper claims, what theory says, what was measured, and a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

COLUMNS = ["row", "quantity", "paper", "predicted", "measured", "low", "high", "paper_holds", "verdict"]


@dataclass(frozen=True)
class Experiment:
    """`run(seeds)` returns a frame with COLUMNS; `seeds` networks at the largest width, where networks are run at all."""

    name: str
    claim: str
    run: Callable[[int], pd.DataFrame]
    seeds: int = 16


def compare(row: str, quantity: str, paper: Fraction, predicted: Fraction, fit: pd.Series) -> tuple:
    """A line of an experiment: `paper_holds` judges the printed exponent, `verdict` ours, by the measured interval."""
    interval = fit.exponent, fit.low, fit.high
    return row, quantity, str(paper), str(predicted), *interval, judge(paper, fit), judge(predicted, fit)


def judge(exponent: Fraction, fit: pd.Series) -> str:
    """Exponents come in steps of 1/2: an interval as wide as that can refute one, but confirms none."""
    if not fit.low <= exponent <= fit.high:
        return "FAILS"
    return "holds" if fit.high - fit.low < 0.5 else "UNCLEAR"
