"""Two numbers of order one for every group of parameters: C_G of its initial variance, Lambda_G of
its rate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Weights:
    """Constants of all groups."""

    C: Mapping[str, float]
    rates: Mapping[str, float]  # Lambda_G; empty where no tangent kernels are wanted

    def own(self, **kernels: np.ndarray) -> dict[str, np.ndarray]:
        """Return what groups add to a tangent kernel, from what they add at a rate of 1."""
        return {group: self.rates[group] * kernel for group, kernel in kernels.items()}
