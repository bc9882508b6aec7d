"""Piecewise polynomials of an unknown function: its kinks, its jumps, and its slope.

On each interval the function is sampled at Chebyshev points. If the last coefficients of the
interpolating polynomial are rounding, the interval is done; otherwise it is halved. Intervals whose
width tends to 0 enclose a kink. The kink becomes an end point, and the search is repeated. After
that, the function is smooth on every piece, and its slope is exact to rounding. If pieces beside a
kink still shrink, the kink is singular: no polynomial approximates a root, a logarithm or a pole.

The Chebyshev points do not reach the ends of an interval, where a jump or a steep slope would be
overlooked: values beside the ends must agree with the polynomial as well.

A steep smooth function, such as tanh(1e4 x), also has narrow pieces, and is cut like one with a
kink. It is neither singular nor does it jump: on its narrow pieces the last coefficients are small
compared with the first ones, whereas those of a root decay like a power of the degree at any
width. And a jump has one height at all distances, whereas a steep slope rises with the distance.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.panels import doubling

DEGREE = 15
AT_ONCE = 2**12  # arguments whose polynomials fit into the cache
RESOLVED = 1e-13
NOISE = 1e-15  # relative to f near zero, because tails are often differences of such numbers
MOST_PIECES = 2**13
MOST_KINKS = 2**11
TO_A_KINK = (46, 16)  # most halvings, and fewest doubles that an interval must contain
TO_AN_END = (104, 1024)  # the same for an end, which may be a pole; doubles are dense at zero
SHRUNK = 1e-7  # width of pieces beside a singular point
FLAT = 3e-15
AT_ENDS = 100  # largest error beside the ends, in units of the rounding of the coefficients
BESIDE = 2.0**-46  # distance from an end relative to x: 64 doubles
BESIDE_ZERO = 4e-13  # least distance: that of the last halving towards a kink
NARROW = 1e-4  # width of pieces that enclose a kink, of f or of a derivative
CONVERGED = 1e-6  # last coefficients relative to the first ones; larger beside a root
JUMP = 1e-8  # relative to the values around it; a smaller jump is a kink
SAME_HEIGHT = 0.9  # least height of a jump at a distance that is 16 times smaller


@dataclass(frozen=True)
class Piecewise:
    """Polynomials of one degree between `ends`, as Chebyshev coefficients."""

    ends: np.ndarray  # (pieces + 1,)
    coefficients: np.ndarray  # (degree + 1, pieces)
    kinks: tuple[float, ...]
    jumps: tuple[float, ...]  # one height for each kink; 0 if the function is continuous there
    singular: tuple[float, ...]  # kinks beside which no polynomial is enough

    def slope(self, x: np.ndarray) -> np.ndarray:
        """Return the derivative, extended by its last value beyond the ends."""
        flat = np.ravel(x)
        derivative = np.polynomial.chebyshev.chebder(self.coefficients)
        widths = np.diff(self.ends)
        result = np.empty(len(flat))
        for start in range(0, len(flat), AT_ONCE):
            part = np.clip(flat[start : start + AT_ONCE], self.ends[0], self.ends[-1])
            piece = np.searchsorted(self.ends, part, side="right") - 1
            piece = np.clip(piece, 0, len(widths) - 1)
            width = widths[piece]
            t = 2 * (part - self.ends[piece]) / width - 1
            values = np.polynomial.chebyshev.chebval(t, derivative[:, piece], tensor=False)
            result[start : start + AT_ONCE] = values * 2 / width
        return result.reshape(np.shape(x))


def resolve(f: Values, reach: float, kinks: tuple[float, ...] = ()) -> Piecewise | None:
    """Return f on [-reach, reach], or None if it varies too fast to be resolved there."""
    ends = np.unique(np.concatenate([_start(reach), kinks]))
    intervals = _halve(f, ends, *TO_A_KINK)
    if intervals is None:
        return None
    kinks = tuple(sorted({*kinks, *_kinks(_sorted(*intervals))}))
    intervals = _halve(f, np.unique(np.concatenate([ends, kinks])), *TO_AN_END)
    if intervals is None:
        return None
    pieces, too_narrow = intervals
    coefficients = _without_noise(_coefficients(f, pieces))
    unlike_polynomials = pieces[~_converges(coefficients, pieces)]
    singular = tuple(kink for kink in kinks if _is_singular(kink, unlike_polynomials, too_narrow))
    regular = tuple(kink for kink in kinks if kink not in singular)
    heights = dict(zip(regular, _jumps(f, regular), strict=True))
    return Piecewise(
        ends=np.append(pieces[:, 0], pieces[-1, 1]),
        coefficients=coefficients.T,
        kinks=kinks,
        jumps=tuple(heights.get(kink, 0.0) for kink in kinks),
        singular=singular,
    )


def _start(reach: float) -> np.ndarray:
    """Return the first ends.

    Neither they nor their middles are round numbers, which users choose as kinks, so that every
    kink is detected.
    """
    left = -doubling(reach, 0.4193718)
    right = doubling(reach, 0.5317246)
    inside = np.concatenate(
        [left[(left < 0) & (left > -reach)], right[(right > 0) & (right < reach)]]
    )
    return np.concatenate([[-reach], np.sort(inside), [reach]])


def _halve(
    f: Values, ends: np.ndarray, halvings: int, doubles: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the intervals (n, 2) on which f is a polynomial, and those too narrow to halve.

    Return None if there are too many.
    """
    done = []
    too_narrow = []
    now = np.stack([ends[:-1], ends[1:]], axis=1)
    with np.errstate(all="ignore"):
        probes = np.abs(f(np.linspace(-1, 1, 9)))
    usual = probes[np.isfinite(probes)].max(initial=0)
    for _ in range(halvings):
        resolved = _is_resolved(f, _coefficients(f, now), now, usual)
        done.append(now[resolved])
        now = now[~resolved]
        spacing = np.spacing(np.abs(now).max(axis=1, initial=0))
        smallest = np.diff(now, axis=1)[:, 0] <= doubles * spacing
        too_narrow.append(now[smallest])
        now = now[~smallest]
        near_kinks = np.diff(now, axis=1).max(initial=0) < NARROW
        if len(now) > (MOST_KINKS if near_kinks else MOST_PIECES):
            return None
        if not len(now):
            break
        middle = now.mean(axis=1)
        left_halves = np.stack([now[:, 0], middle], axis=1)
        right_halves = np.stack([middle, now[:, 1]], axis=1)
        now = np.concatenate([left_halves, right_halves])
    return _sorted(*done), _sorted(*too_narrow, now)


def _is_singular(kink: float, pieces: np.ndarray, too_narrow: np.ndarray) -> bool:
    """Return whether pieces shrink towards the kink."""
    width = np.diff(pieces, axis=1)[:, 0]
    small = np.concatenate([too_narrow, pieces[width < SHRUNK * (1 + abs(kink))]])
    return bool((small == kink).any())


def _sorted(*pieces: np.ndarray) -> np.ndarray:
    all_pieces = np.concatenate(pieces)
    return all_pieces[np.argsort(all_pieces[:, 0])]


def _coefficients(f: Values, intervals: np.ndarray) -> np.ndarray:
    """Return the Chebyshev coefficients on each interval, (intervals, degree + 1)."""
    points, transform = _chebyshev()
    low = intervals[:, :1]
    high = intervals[:, 1:]
    with np.errstate(all="ignore"):
        return f((low + high) / 2 + (high - low) / 2 * points) @ transform


@lru_cache
def _chebyshev() -> tuple[np.ndarray, np.ndarray]:
    """Return points inside [-1, 1], and the matrix from values there to coefficients."""
    n = DEGREE + 1
    angles = (np.arange(n) + 0.5) * np.pi / n
    transform = np.cos(np.outer(angles, np.arange(n))) * (2 / n)
    transform[:, 0] /= 2
    return np.cos(angles), transform


def _is_resolved(
    f: Values, coefficients: np.ndarray, intervals: np.ndarray, usual: float
) -> np.ndarray:
    """Return whether the last three coefficients are rounding, of f or of x, also at the ends.

    Intervals on which f overflows count as resolved: halving does not help.
    """
    size = np.abs(coefficients)
    far = np.abs(intervals).max(axis=1)
    of_x = 2 * np.finfo(float).eps * far / np.diff(intervals, axis=1)[:, 0]
    with np.errstate(all="ignore"):
        of_f = np.maximum(RESOLVED * size.max(axis=1), NOISE * usual * np.maximum(1, far))
        rounding = np.maximum(of_f, of_x * size[:, 1:].max(axis=1))
        small = size[:, -3:].max(axis=1) <= rounding
        small[small] = _agrees_at_ends(
            f, coefficients[small], intervals[small], AT_ENDS * rounding[small]
        )
    return small | ~np.isfinite(size).all(axis=1)


def _agrees_at_ends(
    f: Values, coefficients: np.ndarray, intervals: np.ndarray, room: np.ndarray
) -> np.ndarray:
    """Return whether the polynomial is f beside both ends.

    The distance from the end is the precision of the position of a kink.
    """
    half = np.diff(intervals, axis=1)[:, 0] / 2
    middle = intervals.mean(axis=1)
    inside = np.maximum(BESIDE_ZERO, BESIDE * np.abs(intervals).max(axis=1))
    agrees = np.ones(len(intervals), bool)
    for side in (-1, 1):
        x = middle + side * (half - inside)
        t = (x - middle) / half
        expected = np.polynomial.chebyshev.chebval(t, coefficients.T, tensor=False)
        agrees &= ~(np.abs(f(x) - expected) > room)
    return agrees | (inside > half)


def _converges(coefficients: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """Return whether the last coefficients are small beside the first ones of the same interval.

    Small means below 1e-7 of those of degree 3 to 5, or the rounding of f or of x.
    """
    size = np.abs(coefficients)
    far = np.abs(intervals).max(axis=1)
    of_x = 8 * np.finfo(float).eps * far / np.diff(intervals, axis=1)[:, 0]
    with np.errstate(all="ignore"):
        of_middle = CONVERGED / 10 * size[:, 3:6].max(axis=1)
        rounding = np.minimum(of_x, CONVERGED) * size[:, 1:].max(axis=1)
        bound = np.maximum(np.maximum(of_middle, rounding), FLAT * size[:, 0])
        return size[:, -3:].max(axis=1) <= bound


def _without_noise(coefficients: np.ndarray) -> np.ndarray:
    """Return the coefficients with the slope of a constant set to zero."""
    level = np.abs(coefficients[:, 1:]).max(axis=1) <= FLAT * np.abs(coefficients[:, 0])
    return np.where(level[:, None] & (np.arange(coefficients.shape[1]) > 0), 0.0, coefficients)


def _kinks(pieces: np.ndarray) -> list[float]:
    """Return the middle of each run of narrow pieces, as the shortest decimal near it."""
    width = np.diff(pieces, axis=1)[:, 0]
    centre = pieces.mean(axis=1)
    narrow = pieces[width < NARROW * (1 + np.abs(centre))]
    distance = np.diff(narrow[:, 0], prepend=-np.inf)
    starts = np.flatnonzero(distance > 10 * NARROW * (1 + np.abs(narrow[:, 0])))
    return [_shortest(group) for group in np.split(narrow, starts[1:]) if len(group)]


def _shortest(group: np.ndarray) -> float:
    """Return the shortest decimal in the narrowest intervals of a group.

    It turns 0.2999999999999998 into 0.3, the number that the user wrote.
    """
    width = np.diff(group, axis=1)[:, 0]
    narrowest = group[width <= 1.5 * width.min()]
    low = narrowest.min()
    high = narrowest.max()
    middle = (low + high) / 2
    room = 2 * (high - low)
    for digits in range(13):
        rounded = round(float(middle), digits) + 0.0
        if abs(rounded - middle) <= room:
            return rounded
    return float(middle)


def _jumps(f: Values, kinks: tuple[float, ...]) -> list[float]:
    """Return the height of the jump at each kink; 0 if f is continuous there."""
    at = np.array(kinks)
    near = 1e-12 * (1 + np.abs(at))
    around = np.array([-1, -0.1, 0.1, 1])
    with np.errstate(all="ignore"):
        height = f(at + near) - f(at - near)
        closer = f(at + near / 16) - f(at - near / 16)
        size = np.abs(f(at[:, None] + around)).max(axis=1, initial=0)
        is_jump = (size < np.inf) & (np.abs(height) > JUMP * size)
        is_jump &= np.abs(closer) > SAME_HEIGHT * np.abs(height)
    return [float(h) for h in np.where(is_jump, height, 0.0)]
