"""Fixed point of a map, and its stability."""

from dataclasses import dataclass

from orderone.theory.meanfield.scales import ROUNDING


@dataclass(frozen=True)
class FixedPoint:
    """Value that a map leaves unchanged, and the slope of the map there."""

    value: float
    slope: float

    @property
    def stability(self) -> str:
        """Return stable, unstable, or marginal if the slope is one."""
        if abs(abs(self.slope) - 1) <= ROUNDING:
            return "marginal"
        if abs(self.slope) < 1:
            return "stable"
        return "unstable"
