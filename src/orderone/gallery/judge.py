"""From records to findings, in small steps: some of the rows, a border that noise may straddle, one
word for many."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Finding, Records


def only(frame: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    """The rows in which every named column has that value."""
    for column, value in equal.items():
        frame = frame.loc[frame[column] == value]
    return frame


def joined(records: Records) -> pd.DataFrame:
    return pd.concat(list(records.values()), ignore_index=True)


def below(value: float, border: float, noise: float = 0.0) -> bool | None:
    """None where the noise reaches across the border."""
    if value + noise < border:
        return True
    if value - noise > border:
        return False
    return None


def known(*columns: Any) -> bool:
    """Whether there are numbers, all of them finite: a claim about none would hold by itself."""
    return all(len(column) and np.isfinite(np.asarray(column, float)).all() for column in columns)


def together(told: Iterable[bool | None]) -> bool | None:
    """A claim about all of them: refuted by one, unclear by one, and by none at all."""
    told = list(told)
    if False in told:
        return False
    if None in told or not told:
        return None
    return True


def finding(claim: str, held: bool | None, numbers: str, erratum: str = "") -> Finding:
    """The paper's claim, or with an erratum what is true instead."""
    return Finding(claim, held, numbers, "corrected" if erratum else "paper", erratum)
