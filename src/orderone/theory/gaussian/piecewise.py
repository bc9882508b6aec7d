"""A function of unknown kind as polynomials on pieces: where it bends, where it jumps, and its
slope.

On each interval the function is sampled at Chebyshev points. If the last coefficients of the
interpolating polynomial are rounding, the interval is done; otherwise it is halved. Intervals that
shrink to nothing enclose a kink, which becomes an end point, and the search is repeated. What is
left is smooth everywhere, and its slope is exact to rounding. If pieces still shrink to nothing
beside a kink, it is singular: no polynomial follows a root, a logarithm or a pole.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from orderone.theory.gaussian.panels import doubling

DEGREE = 15
RESOLVED = 1e-13
NOISE = 1e-15  # of the function near zero: tails are often differences of numbers of that size
MOST_PIECES = 2**13
MOST_KINKS = 2**11
TO_A_KINK = 46, 16  # halvings at most, and how many doubles an interval must hold
TO_AN_END = 104, 1024  # a pole is never hit; zero is far away, since doubles are dense there
SHRUNK = 1e-7  # pieces like that beside a kink
FLAT = 3e-15
NARROW = 1e-4  # pieces like that enclose a kink, of phi or of a derivative
JUMP = 1e-8  # relative to the values around it: what is smaller is a kink

Values: TypeAlias = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Piecewise:
    """Polynomials of one degree between `ends`, as Chebyshev coefficients."""

    ends: np.ndarray  # (pieces + 1,)
    coefficients: np.ndarray  # (degree + 1, pieces)
    kinks: tuple[float, ...]
    jumps: tuple[
        float, ...
    ]  # the heights, one for each kink; 0 if the function is continuous there
    singular: tuple[float, ...]  # kinks beside which no polynomial is enough

    def slope(self, x: np.ndarray) -> np.ndarray:
        """The derivative, extended by its last value beyond the ends."""
        x = np.clip(x, self.ends[0], self.ends[-1])
        piece = np.clip(np.searchsorted(self.ends, x, side="right") - 1, 0, len(self.ends) - 2)
        low = self.ends[piece]
        width = np.diff(self.ends)[piece]
        inner = np.polynomial.chebyshev.chebder(self.coefficients)[:, piece]
        return (
            np.polynomial.chebyshev.chebval(2 * (x - low) / width - 1, inner, tensor=False)
            * 2
            / width
        )


def resolve(f: Values, reach: float, kinks: tuple[float, ...] = ()) -> Piecewise | None:
    """f on [-reach, reach], or None if it varies too fast to be resolved there."""
    ends = np.unique(np.concatenate([_start(reach), kinks]))
    found = _halve(f, ends, *TO_A_KINK)
    if found is None:
        return None
    kinks = tuple(sorted({*kinks, *_kinks(_sorted(*found))}))
    found = _halve(f, np.unique(np.concatenate([ends, kinks])), *TO_AN_END)
    if found is None:
        return None
    (pieces, left), coefficients = found, _without_noise(_coefficients(f, found[0]))
    singular = tuple(k for k in kinks if _is_singular(k, pieces, left))
    jumps = _jumps(f, tuple(k for k in kinks if k not in singular))
    heights = dict(zip((k for k in kinks if k not in singular), jumps, strict=True))
    return Piecewise(
        np.append(pieces[:, 0], pieces[-1, 1]),
        coefficients.T,
        kinks,
        tuple(heights.get(k, 0.0) for k in kinks),
        singular,
    )


def _start(reach: float) -> np.ndarray:
    """Ends and middles at no number that a kink would be at, so that every kink is found."""
    left = -doubling(reach, 0.4193718)
    right = doubling(reach, 0.5317246)
    inside = np.concatenate(
        [left[(left < 0) & (left > -reach)], right[(right > 0) & (right < reach)]]
    )
    return np.concatenate([[-reach], np.sort(inside), [reach]])


def _halve(
    f: Values, ends: np.ndarray, halvings: int, doubles: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Intervals (n, 2) on which f is a polynomial, and those that are too narrow to halve; None if
    there are too many."""
    done = []
    narrow = []
    now = np.stack([ends[:-1], ends[1:]], axis=1)
    with np.errstate(all="ignore"):
        probes = np.abs(f(np.linspace(-1, 1, 9)))
    usual = probes[np.isfinite(probes)].max(initial=0)
    for _ in range(halvings):
        resolved = _is_resolved(_coefficients(f, now), now, usual)
        done.append(now[resolved])
        now = now[~resolved]
        smallest = np.diff(now, axis=1)[:, 0] <= doubles * np.spacing(
            np.abs(now).max(axis=1, initial=0)
        )
        narrow.append(now[smallest])
        now = now[~smallest]
        if np.diff(now, axis=1).max(initial=0) < NARROW:
            most = MOST_KINKS
        else:
            most = MOST_PIECES
        if len(now) > most:
            return None
        if not len(now):
            break
        middle = now.mean(axis=1)
        now = np.concatenate([np.stack([now[:, 0], middle], 1), np.stack([middle, now[:, 1]], 1)])
    return _sorted(*done), _sorted(*narrow, now)


def _is_singular(kink: float, pieces: np.ndarray, left: np.ndarray) -> bool:
    """Pieces shrink towards it."""
    beside = np.concatenate(
        [left, pieces[np.diff(pieces, axis=1)[:, 0] < SHRUNK * (1 + abs(kink))]]
    )
    return bool((beside == kink).any())


def _sorted(*pieces: np.ndarray) -> np.ndarray:
    together = np.concatenate(pieces)
    return together[np.argsort(together[:, 0])]


def _coefficients(f: Values, intervals: np.ndarray) -> np.ndarray:
    """(intervals, degree + 1)."""
    points, transform = _chebyshev()
    low = intervals[:, :1]
    high = intervals[:, 1:]
    with np.errstate(all="ignore"):
        return f((low + high) / 2 + (high - low) / 2 * points) @ transform


@lru_cache
def _chebyshev() -> tuple[np.ndarray, np.ndarray]:
    """Points inside [-1, 1], and the matrix from values there to coefficients."""
    n = DEGREE + 1
    angles = (np.arange(n) + 0.5) * np.pi / n
    transform = np.cos(np.outer(angles, np.arange(n))) * (2 / n)
    transform[:, 0] /= 2
    return np.cos(angles), transform


def _is_resolved(coefficients: np.ndarray, intervals: np.ndarray, usual: float) -> np.ndarray:
    """The last three are rounding, of f or of x; values that overflow are as resolved as they will
    ever be."""
    size = np.abs(coefficients)
    far = np.abs(intervals).max(axis=1)
    of_x = 2 * np.finfo(float).eps * far / np.diff(intervals, axis=1)[:, 0]
    with np.errstate(all="ignore"):
        of_f = np.maximum(RESOLVED * size.max(axis=1), NOISE * usual * np.maximum(1, far))
        small = size[:, -3:].max(axis=1) <= np.maximum(of_f, of_x * size[:, 1:].max(axis=1))
    return small | ~np.isfinite(size).all(axis=1)


def _without_noise(coefficients: np.ndarray) -> np.ndarray:
    """(pieces, degree + 1) with the slope of a constant set to nothing."""
    level = np.abs(coefficients[:, 1:]).max(axis=1) <= FLAT * np.abs(coefficients[:, 0])
    return np.where(level[:, None] & (np.arange(coefficients.shape[1]) > 0), 0.0, coefficients)


def _kinks(pieces: np.ndarray) -> list[float]:
    """The middle of each run of narrow pieces, as the shortest decimal in the narrowest of them."""
    width = np.diff(pieces, axis=1)[:, 0]
    centre = pieces.mean(axis=1)
    narrow = pieces[width < NARROW * (1 + np.abs(centre))]
    starts = np.flatnonzero(
        np.diff(narrow[:, 0], prepend=-np.inf) > 10 * NARROW * (1 + np.abs(narrow[:, 0]))
    )
    return [_shortest(group) for group in np.split(narrow, starts[1:]) if len(group)]


def _shortest(group: np.ndarray) -> float:
    """Of the numbers in the narrowest intervals of a group; 0.2999999999999998 was meant as 0.3."""
    width = np.diff(group, axis=1)[:, 0]
    narrowest = group[width <= 1.5 * width.min()]
    low = narrowest.min()
    high = narrowest.max()
    middle = (low + high) / 2
    room = 2 * (high - low)
    candidates = (round(float(middle), digits) + 0.0 for digits in range(13))
    return next((x for x in candidates if abs(x - middle) <= room), float(middle))


def _jumps(f: Values, kinks: tuple[float, ...]) -> tuple[float, ...]:
    at = np.array(kinks)
    near = 1e-12 * (1 + np.abs(at))
    around = np.array([-1, -0.1, 0.1, 1])
    with np.errstate(all="ignore"):
        height = f(at + near) - f(at - near)
        size = np.abs(f(at[:, None] + around)).max(axis=1, initial=0)
        return tuple(
            float(h) if s < np.inf and abs(h) > JUMP * s else 0.0
            for h, s in zip(height, size, strict=True)
        )
