"""Hard tanh, clipped at -1 and 1, in closed form (Rosenbaum 1961; Owen 1956).

With h = 1 / sqrt(q1), k = 1 / sqrt(q2) and the correlation c,

    E phi'(x) phi'(y) = 1 - 2 Q(h) - 2 Q(k) + 2 [U(c) + U(-c)]
    E phi(x) phi(y)   = sqrt(q1 q2) { c [1 - 2 Q(h) - 2 Q(k)] + 2 [M(c) - M(-c)] }

    U(c) = P(X > h, Y > k)
         = [Q(h) + Q(k)] / 2 - T(h, (k - c h) / (h s)) - T(k, (h - c k) / (k s))
    M(c) = E (X - h)_+ (Y - k)_+
         = (c + h k) U - h n(k) Q((h - c k) / s) - k n(h) Q((k - c h) / s) + s^2 n(h, k; c)

where s = sqrt(1 - c^2), Q is the upper tail of a standard normal, T is Owen's function, and n is
the normal density in one or two dimensions.

For c close to 1 the difference E phi^2 - E phi phi is the integral of the slope (Price), without
cancellation; the slope is smooth in sqrt(gap) as long as that is much smaller than h.
"""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
from scipy.special import erf, erfc, gammainc, owens_t

from orderone.core.arrays import as_numpy, like, together
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.numeric import Numeric

FAR = 1e-3  # above this gap the difference of two closed forms has twelve digits
SMOOTH = 0.1  # in units of h: largest sqrt(gap) for which the slope is smooth
NODES = (np.polynomial.legendre.leggauss(16)[0] + 1) / 2
WEIGHTS = np.polynomial.legendre.leggauss(16)[1] / 2
LONG = 1e3  # above this length the closed forms are small differences of large terms
SMALLEST = 1e-300  # replaces shorter lengths, where phi is the identity


@dataclass(frozen=True)
class HardTanh(Numeric):
    """Activation phi(x) = min(max(x, -1), 1)."""

    def at(self, q: ArrayLike) -> AtLength:
        xp, q = together(q=q)
        return AtLength(self, q, xp)

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return 0 * q

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return like(_second_moment(as_numpy(q)), q, xp)

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return like(erf(_threshold(as_numpy(q)) / np.sqrt(2)), q, xp)

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        first, second, gaps = np.broadcast_arrays(as_numpy(q1), as_numpy(q2), as_numpy(gap))
        result = np.array(_both_inside(_threshold(first), _threshold(second), gaps))
        long = np.maximum(first, second) > LONG
        if long.any():
            result[long] = super()._derivative_pair(first[long], second[long], gaps[long], np)
        return like(result, gap, xp)

    def _output_gap(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        first = np.maximum(as_numpy(q1), SMALLEST)
        second = np.maximum(as_numpy(q2), SMALLEST)
        first, second, gaps = np.broadcast_arrays(first, second, as_numpy(gap))
        near = (first == second) & (np.sqrt(gaps) <= SMOOTH * _threshold(first)) & (gaps < FAR)
        rest = ~near & ((gaps < FAR) | (np.maximum(first, second) > LONG))
        result = np.where(near, 0.0, _far(first, second, gaps))
        result[near] = _near(first[near], gaps[near])
        if rest.any():
            result[rest] = super()._output_gap(first[rest], second[rest], gaps[rest], np)
        return like(result, gap, xp)


def _threshold(q: Array) -> Array:
    """Return h, the kink in units of the standard deviation."""
    return 1 / np.sqrt(np.maximum(q, SMALLEST))


def _tail(h: Array) -> Array:
    return erfc(h / np.sqrt(2)) / 2


def _density(h: Array) -> Array:
    return np.exp(-h * h / 2) / np.sqrt(2 * np.pi)


def _second_moment(q: Array) -> Array:
    """Return q P(chi^2_3 < h^2) + P(x^2 > 1)."""
    h = _threshold(q)
    return q * gammainc(1.5, h * h / 2) + 2 * _tail(h)


def _above(h: Array, k: Array, gap: Array) -> tuple[Array, Array]:
    """Return U and M."""
    c = 1 - gap
    s = np.sqrt(gap * (2 - gap))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a = _quotient((k - h) + gap * h, s)  # (k - c h) / s
        b = _quotient((h - k) + gap * k, s)  # (h - c k) / s
        U = (_tail(h) + _tail(k)) / 2 - owens_t(h, a / h) - owens_t(k, b / k)
        joint = s * np.exp(-(h * h) / 2 - a * a / 2) / (2 * np.pi)  # s^2 n(h, k; c)
    M = (c + h * k) * U - h * _density(k) * _tail(b) - k * _density(h) * _tail(a) + joint
    return U, M


def _quotient(x: Array, s: Array) -> Array:
    """Return x / s; for s = 0, 0 if x is 0 and otherwise infinity of its sign."""
    return np.where(s > 0, x / s, np.where(x == 0, 0.0, np.copysign(np.inf, x)))


def _both_inside(h: Array, k: Array, gap: Array) -> Array:
    """Return P(abs(x) < 1, abs(y) < 1) = E phi'(x) phi'(y)."""
    tails = 1 - 2 * _tail(h) - 2 * _tail(k)
    return np.clip(tails + 2 * (_above(h, k, gap)[0] + _above(h, k, 2 - gap)[0]), 0, 1)


def _far(q1: Array, q2: Array, gap: Array) -> Array:
    """Return the output gap as a difference of closed forms."""
    h = _threshold(q1)
    k = _threshold(q2)
    tails = 1 - 2 * _tail(h) - 2 * _tail(k)
    inner = (1 - gap) * tails + 2 * (_above(h, k, gap)[1] - _above(h, k, 2 - gap)[1])
    size = h * np.sqrt(_second_moment(q1)) * k * np.sqrt(_second_moment(q2))
    return np.clip(1 - inner / size, 0, 2)


def _near(q: Array, gap: Array) -> Array:
    """Return the output gap as q times the integral of the slope, in the variable sqrt(gap)."""
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
