"""Rule for Gaussian averages of functions of slopes, which may jump at kinks of the activation."""

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.gaussian.panels import REACH, cut_line
from orderone.theory.gaussian.piecewise import resolve

PANELS = 1000  # so many that the largest slope is close to that at a node
ORDER = 8


def line(phi: Activation, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return z and weights with E f(sqrt(variance) z) = sum of weights f(sqrt(variance) z).

    The line is also cut where phi is not smooth.
    """
    root = float(np.sqrt(variance))
    cuts = np.linspace(-REACH, REACH, PANELS + 1)
    if root > 0:
        pieces = resolve(lambda x: _values(phi, x), max(REACH * root, 1.0))
        if pieces is not None:
            cuts = np.array([*cuts, *np.divide(pieces.kinks, root)])
    return cut_line(cuts, ORDER)


def _values(phi: Activation, x: np.ndarray) -> np.ndarray:
    if not x.size:
        return np.zeros(x.shape)
    return np.asarray(phi(x), dtype=float)
