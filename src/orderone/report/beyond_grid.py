"""Optima outside of the grid in figures: arrows at the end of the grid, where nothing is known."""

from collections.abc import Sequence
from typing import NamedTuple

from orderone.sweeping.optimum import ABOVE, BELOW, Optimum


class GridEnd(NamedTuple):
    """End of a grid beyond which the best learning rate of a size lies."""

    size: int
    x: float  # log2 of the learning rate
    above: bool

    @property
    def lr(self) -> float:
        return float(2.0**self.x)


def grid_ends(optima: Sequence[Optimum]) -> list[GridEnd]:
    """List the ends of the grid beyond which optima lie."""
    ends: list[GridEnd] = []
    for optimum in optima:
        if optimum.beyond in (ABOVE, BELOW):
            above = optimum.beyond == ABOVE
            ends.append(GridEnd(optimum.size, optimum.grid[above], above))
    return ends
