"""Hard tanh, clipped at -1 and 1, in closed form (Rosenbaum 1961; Owen 1956).

With h = 1 / sqrt(q1), k = 1 / sqrt(q2), Q the upper tail of a standard normal, and for correlation
c

    U(c) = P(X > h, Y > k) = [Q(h) + Q(k)] / 2 - T(h, (k - c h) / (h s)) - T(k, (h - c k) / (k s)),    s = sqrt(1 - c^2)
    M(c) = E (X - h)_+ (Y - k)_+ = (c + h k) U - h n(k) Q((h - c k) / s) - k n(h) Q((k - c h) / s) +
    s^2 n(h, k; c)

where T is Owen's function and n the normal density, in one or two dimensions,

    E phi'(x) phi'(y) = 1 - 2 Q(h) - 2 Q(k) + 2 [U(c) + U(-c)]
    E phi(x) phi(y)   = sqrt(q1 q2) { c [1 - 2 Q(h) - 2 Q(k)] + 2 [M(c) - M(-c)] }

For c close to 1 the difference E phi^2 - E phi phi is the integral of the slope (Price), which
subtracts nothing; the slope is smooth in sqrt(gap) as long as that is small beside h.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf, erfc, gammainc, owens_t

from orderone.core.arrays import as_numpy, like, together
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.numeric import Numeric

FAR = 1e-3  # gaps from here on leave the difference of two closed forms twelve digits
SMOOTH = 0.1  # of h: square roots of gaps up to here see no second kink
NODES = (np.polynomial.legendre.leggauss(16)[0] + 1) / 2
WEIGHTS = np.polynomial.legendre.leggauss(16)[1] / 2
LONG = 1e3  # from here on the closed forms are small differences of large terms
SMALLEST = 1e-300  # lengths below have the law of the identity as well


@dataclass(frozen=True)
class HardTanh(Numeric):
    """min(max(x, -1), 1)."""

    def at(self, q: ArrayLike) -> AtLength:
        xp, q = together(q=q)
        return AtLength(self, q, xp)

    def _mean(self, q: Any, xp: Any) -> Any:
        return 0 * q

    def _second_moment(self, q: Any, xp: Any) -> Any:
        return like(_second_moment(as_numpy(q)), q, xp)

    def _derivative_moment(self, q: Any, xp: Any) -> Any:
        return like(erf(_threshold(as_numpy(q)) / np.sqrt(2)), q, xp)

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        first, second, gaps = np.broadcast_arrays(*map(as_numpy, (q1, q2, gap)))
        result = np.array(_both_inside(_threshold(first), _threshold(second), gaps))
        long = np.maximum(first, second) > LONG
        if long.any():
            result[long] = super()._derivative_pair(first[long], second[long], gaps[long], np)
        return like(result, gap, xp)

    def _output_gap(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        first, second = (np.maximum(as_numpy(q), SMALLEST) for q in (q1, q2))
        first, second, gaps = np.broadcast_arrays(first, second, as_numpy(gap))
        near = (first == second) & (np.sqrt(gaps) <= SMOOTH * _threshold(first)) & (gaps < FAR)
        rest = ~near & ((gaps < FAR) | (np.maximum(first, second) > LONG))
        result = np.where(near, 0.0, _far(first, second, gaps))
        result[near] = _near(first[near], gaps[near])
        if rest.any():
            result[rest] = super()._output_gap(first[rest], second[rest], gaps[rest], np)
        return like(result, gap, xp)


def _threshold(q: Array) -> Array:
    return 1 / np.sqrt(np.maximum(q, SMALLEST))


def _tail(h: Array) -> Array:
    return erfc(h / np.sqrt(2)) / 2


def _density(h: Array) -> Array:
    return np.exp(-h * h / 2) / np.sqrt(2 * np.pi)


def _second_moment(q: Array) -> Array:
    """q P(chi^2_3 < h^2) + P(x^2 > 1)."""
    h = _threshold(q)
    return q * gammainc(1.5, h * h / 2) + 2 * _tail(h)


def _above(h: Array, k: Array, gap: Array) -> tuple[Array, Array]:
    """U and M."""
    c = 1 - gap
    square = gap * (2 - gap)
    s = np.sqrt(square)
    x = (k - h) + gap * h
    y = (h - k) + gap * k  # k - c h and h - c k
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a, b = (
            np.where(s > 0, z / s, np.where(z == 0, 0.0, np.copysign(np.inf, z))) for z in (x, y)
        )
        U = (_tail(h) + _tail(k)) / 2 - owens_t(h, a / h) - owens_t(k, b / k)
        spread = (
            s * np.exp(-(h * h) / 2 - a * a / 2) / (2 * np.pi)
        )  # s^2 times the density at (h, k)
    M = (c + h * k) * U - h * _density(k) * _tail(b) - k * _density(h) * _tail(a) + spread
    return U, M


def _both_inside(h: Array, k: Array, gap: Array) -> Array:
    tails = 1 - 2 * _tail(h) - 2 * _tail(k)
    return np.clip(tails + 2 * (_above(h, k, gap)[0] + _above(h, k, 2 - gap)[0]), 0, 1)


def _far(q1: Array, q2: Array, gap: Array) -> Array:
    h = _threshold(q1)
    k = _threshold(q2)
    tails = 1 - 2 * _tail(h) - 2 * _tail(k)
    inner = (1 - gap) * tails + 2 * (_above(h, k, gap)[1] - _above(h, k, 2 - gap)[1])
    return np.clip(
        1 - inner / (h * np.sqrt(_second_moment(q1)) * k * np.sqrt(_second_moment(q2))), 0, 2
    )


def _near(q: Array, gap: Array) -> Array:
    """q times the integral of the slope over gaps, in the variable sqrt(gap)."""
    if not q.size:
        return q
    h = _threshold(q)[:, None]
    root = np.sqrt(gap)[:, None]
    slopes = _both_inside(*np.broadcast_arrays(h, h, (root * NODES) ** 2))
    return gap * (slopes @ (2 * NODES * WEIGHTS)) * q / _second_moment(q)


def _clip(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -1.0, 1.0)


def _clip_slope(x: np.ndarray) -> np.ndarray:
    return (np.sign(1 - x) + np.sign(1 + x)) / 2


HARD_TANH = HardTanh("hard-tanh", _clip, _clip_slope, kinks=(-1.0, 1.0), parity=-1)
