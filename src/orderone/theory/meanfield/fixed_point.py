"""A value that a map leaves alone, and whether it attracts."""

from dataclasses import dataclass

from orderone.theory.meanfield.scales import ROUNDING


@dataclass(frozen=True)
class FixedPoint:
    """The value, and the slope of the map there."""

    value: float
    slope: float

    @property
    def stability(self) -> str:
        """stable, unstable, or marginal where the slope is one."""
        if abs(abs(self.slope) - 1) <= ROUNDING:
            return "marginal"
        return "stable" if abs(self.slope) < 1 else "unstable"
