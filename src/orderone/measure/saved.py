"""Saved records of a check, and exponents that are fitted to them.

A verdict also needs the predictions of a rule for the model, which the records do not contain. Only
`coord_check` returns verdicts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from orderone.core.errors import InputError, with_code
from orderone.measure.check import COLUMNS
from orderone.measure.fit import fit_exponents
from orderone.measure.judge.verdict import SYMBOLS
from orderone.measure.records import PROVENANCE, read

UNJUDGED = "not judged"
NOTE = with_code(
    "saved records contain no verdicts; `orderone check ... --html FILE` draws them with verdicts",
    "no-saved-verdicts",
)


@dataclass(frozen=True)
class Saved:
    """Saved records in the form of a check that `orderone.report` draws, without verdicts."""

    frame: pd.DataFrame = field(repr=False)
    axis: str  # width or depth
    provenance: Mapping[str, object]
    verdict: str = UNJUDGED
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = (NOTE,)

    @staticmethod
    def load(path: str | PathLike[str]) -> "Saved":
        """Load a file that `Check.save` or `orderone check --save` wrote."""
        frame = read(path)
        axis = next((name for name in SYMBOLS if name in frame), None)
        missing = {"seed", "step", "module", "quantity", "rms"} - set(frame)
        if axis is None or missing:
            columns = ", ".join(sorted(missing)) or "width or depth"
            message = (
                f"{Path(path).name}: expected the records of a check, got a table without the"
                f" columns {columns}"
            )
            raise InputError(message, "not-records", argument="path")
        for name in (axis, "seed", "step", "rms"):
            if not pd.api.types.is_numeric_dtype(frame[name].dtype):
                message = f"{Path(path).name}: field {name}: expected numbers"
                raise InputError(message, "not-records", argument="path")
        for name in ("module", "quantity"):
            if not all(isinstance(value, str) for value in frame[name]):
                message = f"{Path(path).name}: field {name}: expected text"
                raise InputError(message, "not-records", argument="path")
        if not (np.isfinite(frame[axis]) & (frame[axis] > 0)).all():
            message = f"{Path(path).name}: field {axis}: expected positive numbers"
            raise InputError(message, "not-records", argument="path")
        return Saved(frame, axis, dict(frame.attrs.get(PROVENANCE, {})))

    @property
    def losses(self) -> pd.DataFrame:
        """An empty table: losses are not saved."""
        return pd.DataFrame(columns=pd.Index([self.axis, "seed", "step", "loss"]))

    @cached_property
    def exponents(self) -> pd.DataFrame:
        """One row for each module and quantity, at the last step that all runs recorded."""
        sizes = self.frame.pivot_table(
            index=["module", "quantity", "step"], columns=[self.axis, "seed"], values="rms"
        )
        complete = sizes[(sizes > 0).all(axis=1) & np.isfinite(sizes).all(axis=1)]
        last = complete.groupby(level=["module", "quantity"]).tail(1)
        runs = sizes.columns.get_level_values(self.axis)
        rows = []
        if len(runs) > 2 and runs.nunique() > 1 and len(last):
            fits = fit_exponents(runs.to_numpy(), last.to_numpy())
            for (module, quantity, step), fit in zip(last.index, fits, strict=True):
                interval = (fit.exponent, fit.low, fit.high)
                rows.append((module, quantity, step, *interval, np.nan, "", "", ""))
        return pd.DataFrame(rows, columns=pd.Index(COLUMNS))
