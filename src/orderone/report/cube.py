"""Records of a check as one array, rms[module, quantity, step, size, seed].

The array is nan where nothing was measured.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone.report.inputs import CheckInput
from orderone.report.verdicts import names

# Quantities in the order in which pages offer them: the most informative first.
QUANTITY_ORDER = (
    "change",
    "output",
    "score change",
    "scores",
    "update",
    "weight",
    "decay",
    "gradient",
    "output gradient",
    "input",
)


@dataclass(frozen=True)
class Cube:
    """RMS of every module, quantity, step, size and seed, with the labels of its axes."""

    modules: list[str]
    quantities: list[str]
    steps: list[int]
    sizes: list[int]  # widths or depths
    seeds: list[object]
    rms: np.ndarray
    known: np.ndarray  # (modules, quantities): whether there is any record, even if it is nan

    def panel(self, module: str, quantity: str, step: int | float) -> np.ndarray:
        """Return the RMS (size, seed) at `step`.

        If there is no such step, return the last step with a value that can be drawn.
        """
        rms = self.rms[self.modules.index(module), self.quantities.index(quantity)]
        if step in self.steps:
            return rms[self.steps.index(int(step))]
        drawable_steps = np.flatnonzero(np.isfinite(drawable(rms)).any((1, 2)))
        if len(drawable_steps):
            return rms[drawable_steps[-1]]
        return rms[-1]


def cube(check: CheckInput) -> Cube:
    """Arrange the records of a check."""
    frame = check.frame
    levels: dict[str, list] = {
        "module": names(check, "module"),
        "quantity": sorted(names(check, "quantity"), key=_quantity_rank),
    }
    for column in ("step", check.axis, "seed"):
        levels[column] = sorted(frame[column].unique().tolist())

    indices = []
    shape = []
    for column, values in levels.items():
        indices.append(pd.Index(values).get_indexer(pd.Index(frame[column])))
        shape.append(len(values))

    rms = np.full(shape, np.nan)
    rms[tuple(indices)] = frame["rms"].to_numpy(float)
    known = np.zeros(shape[:2], bool)
    known[tuple(indices[:2])] = True
    modules, quantities, steps, sizes, seeds = levels.values()
    return Cube(modules, quantities, steps, sizes, seeds, rms, known)


def drawable(rms: np.ndarray) -> np.ndarray:
    """Replace values that a logarithmic axis cannot show (zero, infinity) by nan."""
    return np.where(np.isfinite(rms) & (rms > 0), rms, np.nan)


def line(sizes: np.ndarray, rms: np.ndarray, exponent: float) -> np.ndarray:
    """Return size^exponent through the centre (geometric mean) of the data.

    The line is nan if there is no data or no exponent.
    """
    finite = np.isfinite(rms)
    if not finite.any():
        return np.full(len(sizes), np.nan)
    size_of_each = np.broadcast_to(np.asarray(sizes)[:, None], rms.shape)
    centre = np.log(size_of_each[finite]).mean()
    return np.exp(np.log(rms[finite]).mean() + exponent * (np.log(sizes) - centre))


def _quantity_rank(quantity: str) -> int:
    """Return the place in `QUANTITY_ORDER`; unknown quantities come last."""
    if quantity in QUANTITY_ORDER:
        return QUANTITY_ORDER.index(quantity)
    return len(QUANTITY_ORDER)
