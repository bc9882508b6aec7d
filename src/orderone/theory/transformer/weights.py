"""The two numbers of order one that every group of parameters has: C_G of its initial variance,
Lambda_G of its rate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Weights:
    """`rates` is empty where no tangent kernels are wanted."""

    C: Mapping[str, float]
    rates: Mapping[str, float]

    def own(self, **kernels: np.ndarray) -> dict[str, np.ndarray]:
        """What groups add to a tangent kernel, from what they add at a rate of 1."""
        return {group: self.rates[group] * kernel for group, kernel in kernels.items()}
