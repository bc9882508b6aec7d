"""Helpers of judges, from records to findings: selected rows, borders with noise, one verdict for
many."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Finding, Records


def only(frame: pd.DataFrame, **equal: object) -> pd.DataFrame:
    """Return the rows in which every named column has that value."""
    for column, value in equal.items():
        frame = frame.loc[frame[column] == value]
    return frame


def joined(records: Records) -> pd.DataFrame:
    """Return the rows of all parts in one frame."""
    return pd.concat(list(records.values()), ignore_index=True)


def below(value: float, border: float, noise: float = 0.0) -> bool | None:
    """Return whether `value` is below `border`; None where the noise reaches across it."""
    if value + noise < border:
        return True
    if value - noise > border:
        return False
    return None


def known(*columns: Any) -> bool:
    """Return whether there are numbers in every column, all of them finite.

    A claim about no numbers would hold by itself.
    """
    for column in columns:
        values = np.asarray(column, float)
        if not len(values) or not np.isfinite(values).all():
            return False
    return True


def where_known(holds: object, *columns: Any) -> bool | None:
    """Return the verdict `holds` if the numbers it rests on are known, otherwise None."""
    if known(*columns):
        return bool(holds)
    return None


def together(verdicts: Iterable[bool | None]) -> bool | None:
    """Judge a claim about all of them: one refutes it, one unclear makes it unclear, and so does an
    empty list."""
    verdicts = list(verdicts)
    if False in verdicts:
        return False
    if None in verdicts or not verdicts:
        return None
    return True


def opposite(verdict: bool | None) -> bool | None:
    """Return the verdict on the opposite claim; None stays None."""
    if verdict is None:
        return None
    return not verdict


def finding(claim: str, held: bool | None, numbers: str, erratum: str = "") -> Finding:
    """Return a finding about the paper's claim, or with an erratum about the corrected one."""
    of = "corrected" if erratum else "paper"
    return Finding(claim, held, numbers, of, erratum)
