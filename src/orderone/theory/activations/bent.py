"""ELU and SELU, which are smooth on both sides of a kink at zero.

    elu(x)  = x for x > 0,   alpha (e^x - 1) for x < 0
    selu(x) = lambda elu(x)

with the alpha and lambda of Klambauer et al. 2017, for which the length map has the fixed point 1.
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations.bent_pairs import Bent

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


@dataclass(frozen=True)
class Elu:
    """ELU times `scale`, or its slope."""

    alpha: float
    scale: float = 1.0
    slope: bool = False

    def __call__(self, x: np.ndarray) -> np.ndarray:
        below = np.minimum(x, 0.0)
        if self.slope:
            middle = np.where(x < 0, self.alpha * np.exp(below), (1 + self.alpha) / 2)
            return self.scale * np.where(x > 0, 1.0, middle)
        return self.scale * (np.maximum(x, 0.0) + self.alpha * np.expm1(below))


def elu(alpha: float = 1.0, scale: float = 1.0, *, name: str = "elu") -> Bent:
    """Return ELU; `alpha` is minus its limit on the left."""
    return Bent(
        name,
        Elu(alpha, scale),
        Elu(alpha, scale, slope=True),
        kinks=(0.0,),
        alpha=alpha,
        scale=scale,
    )


SELU = elu(SELU_ALPHA, SELU_SCALE, name="selu")
