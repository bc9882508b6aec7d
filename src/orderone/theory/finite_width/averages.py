"""Rule for Gaussian averages of functions of slopes, which may jump."""

import numpy as np

from orderone.theory.gaussian.panels import density, legendre

REACH = 11.0  # standard deviations
PANELS = 1000  # so many that a jump, which lies inside of one panel, costs 1e-4 at most
ORDER = 8


def line() -> tuple[np.ndarray, np.ndarray]:
    """Return z and weights with E f(z) = sum of weights f(z)."""
    nodes, weights = legendre(ORDER)
    width = 2 * REACH / PANELS
    z = (-REACH + width * (np.arange(PANELS)[:, None] + nodes)).ravel()
    return z, width * np.tile(weights, PANELS) * density(z)
