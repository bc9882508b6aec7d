"""Helpers of judges: select rows, compare with a border in the presence of noise, join verdicts."""

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
    """Return whether `value` is below `border`; None if the noise does not allow to decide."""
    if value + noise < border:
        return True
    if value - noise > border:
        return False
    return None


def known(*columns: Any) -> bool:
    """Return whether every column has numbers and all of them are finite.

    Otherwise a claim about all numbers would hold trivially.
    """
    for column in columns:
        values = np.asarray(column, float)
        if not len(values) or not np.isfinite(values).all():
            return False
    return True


def where_known(holds: object, *columns: Any) -> bool | None:
    """Return the verdict `holds` if the numbers behind it are known, otherwise None."""
    if known(*columns):
        return bool(holds)
    return None


def together(verdicts: Iterable[bool | None]) -> bool | None:
    """Join verdicts on a claim about all cases: False if one is False, otherwise None if one is
    None or there are no cases, otherwise True."""
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


def finding(
    claim: str, held: bool | None, numbers: str, erratum: str = "", of: str = "paper"
) -> Finding:
    """Return a finding about the paper's claim, or with an erratum about the corrected one."""
    if erratum:
        of = "corrected"
    return Finding(claim, held, numbers, of, erratum)
