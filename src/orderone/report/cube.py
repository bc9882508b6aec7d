"""All records of a check as one array, rms[module, quantity, step, size, seed]; nan where nothing
was measured."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from orderone.report.verdicts import names

TELLING = (
    *("change", "output", "score change", "scores", "update", "relative update", "weight", "decay"),
    *("gradient", "output gradient", "input"),
)


@dataclass(frozen=True)
class Cube:
    modules: list[str]
    quantities: list[str]
    steps: list[int]
    sizes: list[int]  # widths or depths
    seeds: list[Any]
    rms: np.ndarray
    known: np.ndarray  # (modules, quantities): whether there is any record, be it not a number

    def panel(self, module: str, quantity: str, step: int | float) -> np.ndarray:
        """rms (size, seed) at that step; without one, at the last that has something to show."""
        rms = self.rms[self.modules.index(module), self.quantities.index(quantity)]
        shows = np.flatnonzero(np.isfinite(drawable(rms)).any((1, 2)))
        if step in self.steps:
            at = self.steps.index(int(step))
        elif len(shows):
            at = shows[-1]
        else:
            at = -1
        return rms[at]


def cube(r: Any) -> Cube:
    frame = r.frame
    levels: dict[str, list] = {
        "module": names(r, "module"),
        "quantity": sorted(names(r, "quantity"), key=_place),
    }
    levels |= {name: sorted(frame[name].unique().tolist()) for name in ("step", r.axis, "seed")}
    at = tuple(pd.Index(values).get_indexer(frame[name]) for name, values in levels.items())
    rms = np.full([len(values) for values in levels.values()], np.nan)
    rms[at] = frame["rms"].to_numpy(float)
    known = np.zeros(rms.shape[:2], bool)
    known[at[:2]] = True
    module, quantity, step, size, seed = levels.values()
    return Cube(module, quantity, step, size, seed, rms, known)


def drawable(rms: np.ndarray) -> np.ndarray:
    """On a logarithmic axis: zero, infinite and missing values become nan."""
    return np.where(np.isfinite(rms) & (rms > 0), rms, np.nan)


def line(sizes: np.ndarray, rms: np.ndarray, exponent: float) -> np.ndarray:
    """size^exponent through the centre (geometric mean) of the data; nan if there is no data or no
    exponent."""
    there = np.isfinite(rms)
    if not there.any():
        return np.full(len(sizes), np.nan)
    x = np.log(np.broadcast_to(np.asarray(sizes)[:, None], rms.shape)[there]).mean()
    return np.exp(np.log(rms[there]).mean() + exponent * (np.log(sizes) - x))


def _place(quantity: str) -> int:
    """What tells most comes first, what nobody here knows last."""
    if quantity in TELLING:
        return TELLING.index(quantity)
    return len(TELLING)
