"""Means over the correlation of two inputs of a shaped network, without sampling paths.

Ito's rule turns (2.7) for two inputs into one equation for their correlation alone,

    drho = [nu(rho) - rho (1 - rho^2) / 2] dt + (1 - rho^2) dB                   from S3 (2.7)-(2.8)

Its noise vanishes at both ends, near which the distribution concentrates. Fisher's y = artanh(rho)
maps the interval to the whole line, with noise of constant size,

    dy = b(y) dt + dB,   b = nu(rho) / (1 - rho^2) + rho / 2

and `backward` solves for u(t, y) = E g(tanh y_t). The line is cut at both ends. On the right b
tends to 1/2, a path at y returns with probability e^{-y}, and u is g(1). On the left the same holds
for linear networks; otherwise b grows as nu(-1) e^{-2y} / 4, no path goes there, and u is flat.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from collections.abc import Callable
from math import atanh, ceil, exp, log, pi, sqrt
from typing import Annotated, TypeAlias

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import Number, UserInput
from orderone.core.reals import real
from orderone.theory.limits.backward import Backward
from orderone.theory.limits.relu_moments import f1
from orderone.theory.limits.shaped import ShapedReLU

REACH = 40.0  # e^-40 is below rounding
PIECE = 0.5  # length of a piece of the line
LATE = 1e-9  # share of the time that a path from rho = -1 needs to the left end of the line
INSTANT = 1e-20  # time times speed below which nothing changes
LINEAR = 1e-100  # drift below which the network is linear

CorrelationFunction: TypeAlias = Annotated[Callable[[np.ndarray], np.ndarray | float], UserInput]


def correlation_mean(
    g: CorrelationFunction,
    rho0: Number,
    T: Number = 1.0,
    c_plus: Number = 0.0,
    c_minus: Number = -1.0,
) -> float:
    """Return E g(rho_T) for a shaped ReLU network; `g` takes and returns an array.

    Exact to 1e-8 of the size of g, also for roots at the ends such as sqrt(1 - rho^2); to 1e-6 if g
    has a kink in between, and to 1e-3 if it jumps.
    """
    rho = real(rho0, "rho0", least=-1, most=1)
    shaped = ShapedReLU(c_plus, c_minus)
    time = real(T, "T", least=0, most=1000)
    k = shaped.drift if shaped.drift > LINEAR else 0.0
    # b is 2/3 k e^{-y} near rho = 1: every path has reached rho = 1
    if k * time > exp(REACH):
        rho = 1.0
    _values(g, np.array([-1.0, 0.0, 1.0]))
    if time * (1 + k) < INSTANT or rho == 1 or (rho == -1 and k == 0):  # rho does not change
        return float(_values(g, np.array([rho]))[0])
    y = -np.inf if rho == -1 else atanh(rho)
    line = Backward(_cuts(k, y, time), lambda points: _drift(points, k), fixed_left=k == 0)
    return line.mean(lambda points: _values(g, np.tanh(points)), y, time)


def _drift(y: np.ndarray, k: float) -> np.ndarray:
    theta = 2 * np.arctan(np.exp(-y))  # arccos(rho), with all digits near rho = 1
    return k * f1(theta) * np.cosh(y) ** 2 + np.tanh(y) / 2


def _cuts(k: float, y: float, time: float) -> np.ndarray:
    """Return the ends of pieces of equal length, with smaller ones around y for short times."""
    right = REACH + log(max(1.0, k))
    left = -REACH
    if k != 0:
        left = 0.5 * log(k * pi / 2 * LATE * min(1.0, time))
    even = np.linspace(left, right, ceil((right - left) / PIECE) + 1)
    near = sqrt(time) * 2.0 ** np.arange(-1, 60)
    near = near[near < PIECE]
    return np.unique(np.clip(np.concatenate([even, y + near, y - near]), left, right))


def _values(g: CorrelationFunction, rho: np.ndarray) -> np.ndarray:
    try:
        values = np.asarray(g(rho.ravel()), dtype=float)
    except Exception as error:  # the user's function may raise anything
        raise InputError(
            f"g: expected a function of an array of correlations, but {g!r} raised {error!r}",
            argument="g",
        ) from error
    if values.shape not in ((), (rho.size,)) or not np.all(np.isfinite(values)):
        raise InputError(
            f"g: expected a finite number for each correlation in [-1, 1], but {g!r} returned"
            " values that are not finite, or an array of another shape",
            argument="g",
        )
    return np.broadcast_to(values, rho.size).reshape(rho.shape)
