"""Constants of order one of every group: C_G of its initial variance, Lambda_G of its rate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Weights:
    """Constants of all groups."""

    C: Mapping[str, float]
    rates: Mapping[str, float]  # Lambda_G; empty without tangent kernels

    def direct(self, **kernels: np.ndarray) -> dict[str, np.ndarray]:
        """Return contributions to a tangent kernel, from those at a rate of 1."""
        parts = {}
        for group, kernel in kernels.items():
            rate = self.rates[group]
            parts[group] = rate * kernel if rate else np.zeros_like(kernel)  # kernels may be inf
        return parts
