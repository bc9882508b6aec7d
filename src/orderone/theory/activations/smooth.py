"""Smooth activations without closed forms, all based on the logistic function.

sigmoid(x)  = 1 / (1 + e^-x)
tanh(x)     = 2 sigmoid(2x) - 1
silu(x)     = x sigmoid(x)
softplus(x) = log(1 + e^x)
"""

import numpy as np
from scipy.special import expit

from orderone.theory.activations.numeric import Numeric


def _sech_squared(x: np.ndarray) -> np.ndarray:
    """Return 1 - tanh(x)^2 without cancellation."""
    e = np.exp(-2 * np.abs(x))
    return 4 * e / (1 + e) ** 2


def _silu_slope(x: np.ndarray) -> np.ndarray:
    return expit(x) * (1 + x * expit(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


def _sigmoid_slope(x: np.ndarray) -> np.ndarray:
    return expit(x) * expit(-x)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * expit(x)


TANH = Numeric("tanh", np.tanh, _sech_squared, parity=-1)
SIGMOID = Numeric("sigmoid", expit, _sigmoid_slope)
SILU = Numeric("silu", _silu, _silu_slope)
SOFTPLUS = Numeric("softplus", _softplus, expit)
