"""Gaussian moments of the ReLU, as functions of the angle between two inputs.

    K_{p,r}(rho) = E relu(g)^p relu(g')^r                                           S3 (4.10)-(4.11)

g and g' are standard normal with correlation rho; theta = arccos(rho).

    2 pi K_0 = pi - theta,                       2 pi K_1  = pi cos(theta) + f_1
    2 pi K_2 = pi (1 + 2 cos^2(theta)) + f_2,    2 pi K_31 = 3 pi cos(theta) + f_31

    f_1  = sin - theta cos               = theta^3 / 3 - ...
    f_2  = 3 cos sin - theta (1 + 2 cos^2)  = O(theta^5)
    f_31 = sin (2 + cos^2) - 3 theta cos    = O(theta^5)

Deep networks have theta -> 0, where cancellation in f_1, f_2 and f_31 as written loses all digits;
there their Taylor series are summed. nu(rho) of S3 (2.8) is f_1 (c_+ - c_-)^2 / (2 pi), and
E relu relu of S3 (B.4) is K_1.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from math import factorial, pi
from types import ModuleType

import array_api_compat

from orderone.core.covariances import array
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike, Number
from orderone.core.reals import real

SMALL = 0.5  # below this angle nine terms of the series are exact to rounding
TERMS = range(1, 10)


def K0(rho: ArrayLike) -> Array:
    """Return E 1[g > 0] 1[g' > 0]."""
    theta, _ = _angle(rho)
    return (pi - theta) / (2 * pi)


def K1(rho: ArrayLike) -> Array:
    """Return E relu(g) relu(g')."""
    theta, xp = _angle(rho)
    return xp.cos(theta) / 2 + f1(theta) / (2 * pi)


def K2(rho: ArrayLike) -> Array:
    """Return E relu(g)^2 relu(g')^2."""
    theta, xp = _angle(rho)
    return (1 + 2 * xp.cos(theta) ** 2) / 2 + f2(theta) / (2 * pi)


def K31(rho: ArrayLike) -> Array:
    """Return E relu(g)^3 relu(g')."""
    theta, xp = _angle(rho)
    return 3 * xp.cos(theta) / 2 + f31(theta) / (2 * pi)


def nu(rho: ArrayLike, c_plus: Number = 0.0, c_minus: Number = -1.0) -> Array:
    """Return the drift of a correlation in a shaped network: S3 (2.8).

    Erratum S3.2: (3.7), (3.12) and (B.5) print another sign.
    """
    difference = real(c_plus, "c_plus", -1e100, 1e100) - real(c_minus, "c_minus", -1e100, 1e100)
    return f1(_angle(rho)[0]) * (difference**2 / (2 * pi))


def f1(theta: Array) -> Array:
    xp = array_api_compat.array_namespace(theta)
    direct = xp.sin(theta) - theta * xp.cos(theta)
    series = [(-1) ** k * (1 / factorial(2 * k + 1) - 1 / factorial(2 * k)) for k in TERMS]
    return _joined(theta, direct, series, xp)


def f2(theta: Array) -> Array:
    xp = array_api_compat.array_namespace(theta)
    sin = xp.sin(theta)
    cos = xp.cos(theta)
    series = [
        (-1) ** k * 2 ** (2 * k) * (3 / factorial(2 * k + 1) - 1 / factorial(2 * k)) for k in TERMS
    ]
    return _joined(theta, 3 * cos * sin - theta * (1 + 2 * cos**2), series, xp)


def f31(theta: Array) -> Array:
    xp = array_api_compat.array_namespace(theta)
    sin = xp.sin(theta)
    cos = xp.cos(theta)
    series = [
        (-1) ** k * ((9 + 3 ** (2 * k + 1)) / (4 * factorial(2 * k + 1)) - 3 / factorial(2 * k))
        for k in TERMS
    ]
    return _joined(theta, sin * (2 + cos**2) - 3 * theta * cos, series, xp)


def angle_of_gap(gap: Array) -> Array:
    """Return theta with cos(theta) = 1 - gap, accurate even for gaps below the rounding of 1."""
    xp = array_api_compat.array_namespace(gap)
    return 2 * xp.asin(xp.sqrt(gap / 2))


def _angle(values: ArrayLike) -> tuple[Array, ModuleType]:
    rho, xp = array(values, "rho")
    if not bool(xp.all((rho >= -1) & (rho <= 1))):
        raise InputError(f"rho: expected correlations in [-1, 1], got {rho!r}", argument="rho")
    return angle_of_gap(1 - rho), xp


def _joined(theta: Array, direct: Array, series: list[float], xp: ModuleType) -> Array:
    """Return theta^3 (s_1 + s_2 theta^2 + ...) where theta is small, and `direct` elsewhere."""
    square = theta * theta
    total = xp.zeros_like(theta)
    for coefficient in reversed(series):
        total = total * square + coefficient
    return xp.where(theta < SMALL, total * square * theta, direct)
