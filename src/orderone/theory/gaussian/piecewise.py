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
width. And the height of a jump is the same between two neighbouring doubles, whereas a steep slope
rises over many of them.

In the slope of f, a rise over fewer than about a thousand doubles counts as a jump, or is refused.

No number of samples finds every narrow feature. The polynomials are compared with f on a fixed
grid as well, so that bumps of a thousandth (relative to x, if x is large) are found. `narrow` finds
still narrower ones.
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
MOST_KINKS = 2**10
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
SAME_HEIGHT = 0.9  # least height of a jump between neighbouring doubles
NEAR = 1e-12  # a jump is sought at this distance from a kink, relative to 1 + abs(x)
ADJACENT = 1e-28  # distance that counts as that of neighbouring doubles; they are dense at zero
CORNER = 1e-7  # distance of samples beside a corner, relative to 1 + abs(x)
MOST_MOVED = 64  # doubles by which a corner may be moved
NO_DIGITS = np.finfo(float).tiny / np.finfo(float).eps  # smaller numbers lose digits
APART = 8  # kinks are apart if their distance is this many widths of their intervals
GRID = 1 / 1024  # distance of points of the grid between -2 and 2
FAR_GRID = 1 / 512  # the same relative to x beyond
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Piecewise:
    """Polynomials of one degree between `ends`, as Chebyshev coefficients."""

    ends: np.ndarray  # (pieces + 1,)
    coefficients: np.ndarray  # (degree + 1, pieces)
    kinks: tuple[float, ...]
    jumps: tuple[float, ...]  # one height for each kink; 0 if the function is continuous there
    singular: tuple[float, ...]  # kinks beside which no polynomial is enough

    def values(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the polynomials at x, and the sum of the coefficients' sizes on its piece."""
        piece = np.searchsorted(self.ends, x, side="right") - 1
        piece = np.clip(piece, 0, len(self.ends) - 2)
        if x.size and piece.min() == piece.max():  # no table of coefficients for every point
            piece = piece.flat[:1]
        t = 2 * (x - self.ends[piece]) / np.diff(self.ends)[piece] - 1
        values = np.polynomial.chebyshev.chebval(t, self.coefficients[:, piece], tensor=False)
        return values, np.abs(self.coefficients).sum(axis=0)[piece]

    def slope(self, x: np.ndarray) -> np.ndarray:
        """Return the derivative, extended by its last value beyond the ends."""
        flat = np.ravel(x)
        derivative = np.polynomial.chebyshev.chebder(self.coefficients)
        degree = np.flatnonzero(derivative.any(axis=1)).max(initial=0)
        derivative = derivative[: degree + 1]  # nothing but zeros for a function of steps
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

    def steep_kinks(self) -> dict[float, float]:
        """Return the error of slope^2 at each kink without a jump.

        It is an area: the precision of the kink's position times the change of slope^2. If the
        polynomials on both sides do not meet, f rises in between, and the error is at least the
        square of the height divided by the distance.
        """
        kinks = np.array(self.kinks)[np.array(self.jumps) == 0]
        kinks = kinks[np.isin(kinks, self.ends[1:-1])]
        right = np.searchsorted(self.ends, kinks)
        width = np.diff(self.ends)
        derivative = np.polynomial.chebyshev.chebder(self.coefficients) * 2 / width
        at_right = (derivative[:, right], self.coefficients[:, right])
        at_left = (derivative[:, right - 1], self.coefficients[:, right - 1])
        slope, value = (np.polynomial.chebyshev.chebval(-1.0, c) for c in at_right)
        slope_before, value_before = (np.polynomial.chebyshev.chebval(1.0, c) for c in at_left)
        precision = BESIDE_ZERO + BESIDE * np.abs(kinks)
        height = np.abs(value - value_before)
        size = np.maximum(np.abs(value), np.abs(value_before))
        height[height <= JUMP * size] = 0.0
        errors = precision * np.abs(slope**2 - slope_before**2) + height**2 / precision
        return dict(zip(kinks.tolist(), errors.tolist(), strict=True))


def resolve(f: Values, reach: float, kinks: tuple[float, ...] = ()) -> Piecewise | None:
    """Return f on [-reach, reach], or None if it varies too fast to be resolved there."""
    ends = np.unique(np.concatenate([_start(reach), kinks]))
    samples = _samples(f, reach)
    intervals = _halve(f, ends, samples, *TO_A_KINK)
    if intervals is None:
        return None
    candidates = np.unique(np.concatenate([kinks, _kinks(*intervals)]))
    located, heights = _located_jumps(f, candidates)
    located = np.where(heights == 0, _corners(f, located), located)
    jumps = dict(zip(located.tolist(), heights.tolist(), strict=True))
    kinks = tuple(sorted(jumps))
    intervals = _halve(f, np.unique(np.concatenate([ends, kinks])), samples, *TO_AN_END)
    if intervals is None:
        return None
    too_narrow = intervals[1]
    pieces = _sorted(*intervals)
    coefficients = _without_noise(_coefficients(f, pieces))
    unlike_polynomials = pieces[~_converges(coefficients, pieces)]
    return Piecewise(
        ends=np.append(pieces[:, 0], pieces[-1, 1]),
        coefficients=coefficients.T,
        kinks=kinks,
        jumps=tuple(jumps[kink] for kink in kinks),
        singular=_singular(np.array(kinks), unlike_polynomials, too_narrow),
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


def _samples(f: Values, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the grid, and f there.

    Their distances are irregular, so that a function with a period does not hide between them.
    """
    near = np.arange(GRID, min(2.0, reach), GRID)
    far = np.exp(np.arange(np.log(2.0), np.log(max(reach, 2.0)), FAR_GRID))
    outward = np.concatenate([near, far])
    moved = outward * (1 + FAR_GRID / 4 * (np.arange(len(outward)) * GOLDEN % 1))
    inside = moved[moved < reach]
    x = np.concatenate([-GOLDEN * inside[::-1], inside])
    with np.errstate(all="ignore"):
        return x, f(x)


def _halve(
    f: Values,
    ends: np.ndarray,
    samples: tuple[np.ndarray, np.ndarray],
    halvings: int,
    doubles: int,
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
        resolved = _is_resolved(f, _coefficients(f, now), now, usual, samples)
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


def _singular(kinks: np.ndarray, pieces: np.ndarray, too_narrow: np.ndarray) -> tuple[float, ...]:
    """Return the kinks towards which pieces shrink."""
    width = np.diff(pieces, axis=1)[:, 0]
    shrunk = pieces[width < SHRUNK * (1 + np.abs(pieces).min(axis=1))]
    beside = np.concatenate([too_narrow, shrunk]).ravel()
    return tuple(kinks[np.isin(kinks, beside)].tolist())


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
    f: Values,
    coefficients: np.ndarray,
    intervals: np.ndarray,
    usual: float,
    samples: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Return whether the last three coefficients are rounding, of f or of x, also at the ends.

    The polynomial must also agree with the samples of f.

    Intervals on which f overflows count as resolved: halving does not help.
    """
    size = np.abs(coefficients)
    far = np.abs(intervals).max(axis=1)
    of_x = 2 * np.finfo(float).eps * far / np.diff(intervals, axis=1)[:, 0]
    with np.errstate(all="ignore"):
        noise = np.maximum(NO_DIGITS, NOISE * usual * np.maximum(1, far))
        of_f = np.maximum(RESOLVED * size.max(axis=1), noise)
        rounding = np.maximum(of_f, of_x * size[:, 1:].max(axis=1))
        small = size[:, -3:].max(axis=1) <= rounding
        room = AT_ENDS * rounding
        small[small] = _agrees_at_ends(f, coefficients[small], intervals[small], room[small])
        small[small] = _agrees_with(samples, coefficients[small], intervals[small], room[small])
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


def _agrees_with(
    samples: tuple[np.ndarray, np.ndarray],
    coefficients: np.ndarray,
    intervals: np.ndarray,
    room: np.ndarray,
) -> np.ndarray:
    """Return whether the polynomial is f at all samples inside the interval."""
    x, values = samples
    agrees = np.ones(len(intervals), bool)
    first = np.searchsorted(x, intervals[:, 0], side="right")
    number = np.maximum(np.searchsorted(x, intervals[:, 1], side="left") - first, 0)
    piece = np.repeat(np.arange(len(intervals)), number)
    offset = np.arange(len(piece)) - np.repeat(np.cumsum(number) - number, number)
    sample = np.repeat(first, number) + offset
    low = intervals[piece, 0]
    width = np.diff(intervals, axis=1)[piece, 0]
    t = 2 * (x[sample] - low) / width - 1
    expected = np.polynomial.chebyshev.chebval(t, coefficients[piece].T, tensor=False)
    differs = np.abs(values[sample] - expected) > room[piece]
    agrees[piece[differs]] = False
    return agrees


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
    """Return the coefficients with the slope of a constant, or of infinities, set to zero."""
    level = np.abs(coefficients[:, 1:]).max(axis=1) <= FLAT * np.abs(coefficients[:, 0])
    level |= ~np.isfinite(coefficients).all(axis=1)
    return np.where(level[:, None] & (np.arange(coefficients.shape[1]) > 0), 0.0, coefficients)


def _kinks(pieces: np.ndarray, too_narrow: np.ndarray) -> list[float]:
    """Return one point for each run of narrow pieces, as the shortest decimal near it.

    Where pieces could not be halved further, every separate one of them is a kink: a steep ramp
    has one at each end.
    """
    all_pieces = _sorted(pieces, too_narrow)
    width = np.diff(all_pieces, axis=1)[:, 0]
    centre = all_pieces.mean(axis=1)
    narrow = all_pieces[width < NARROW * (1 + np.abs(centre))]
    distance = np.diff(narrow[:, 0], prepend=-np.inf)
    starts = np.flatnonzero(distance > 10 * NARROW * (1 + np.abs(narrow[:, 0])))
    kinks = []
    for group in np.split(narrow, starts[1:]):
        inside = too_narrow[np.isin(too_narrow[:, 0], group[:, 0])]
        if len(inside):
            kinks.extend(_shortest(cluster) for cluster in _clusters(inside))
        elif len(group):
            kinks.append(_shortest(group))
    return kinks


def _clusters(intervals: np.ndarray) -> list[np.ndarray]:
    """Split sorted intervals where they are far apart compared with their widths."""
    width = np.diff(intervals, axis=1)[:, 0]
    space = intervals[1:, 0] - intervals[:-1, 1]
    apart = space > APART * np.maximum(width[1:], width[:-1])
    return np.split(intervals, np.flatnonzero(apart) + 1)


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


def _located_jumps(f: Values, kinks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kinks, and the height of the jump at each; 0 if f is continuous there.

    A jump is located between two neighbouring doubles by halving: f changes most in one half.
    """
    away = np.diff(kinks, prepend=-np.inf, append=np.inf)
    near = np.minimum(NEAR * (1 + np.abs(kinks)), np.minimum(away[:-1], away[1:]) / 2)
    low = kinks - near
    high = kinks + near
    around = np.array([-1, -0.1, 0.1, 1])
    with np.errstate(all="ignore"):
        at_low = f(low)
        at_high = f(high)
        height = at_high - at_low
        size = np.abs(f(kinks[:, None] + around)).max(axis=1, initial=0)
        for _ in range(96):
            middle = low + GOLDEN * (high - low)  # rarely the kink itself
            apart = (middle > low) & (middle < high) & (high - low > ADJACENT)
            if not apart.any():
                break
            at_middle = f(middle)
            left = np.abs(at_middle - at_low) > np.abs(at_high - at_middle)
            low = np.where(apart & ~left, middle, low)
            at_low = np.where(apart & ~left, at_middle, at_low)
            high = np.where(apart & left, middle, high)
            at_high = np.where(apart & left, at_middle, at_high)
        # At the kink itself, f may have a third value: look at the next doubles as well.
        change = f(np.nextafter(high, np.inf)) - f(np.nextafter(low, -np.inf))
        is_jump = (size < np.inf) & (np.abs(height) > JUMP * size)
        is_jump &= np.abs(change - height) <= (1 - SAME_HEIGHT) * np.abs(height)
    in_between = (low <= kinks) & (kinks <= high)
    located = np.where(is_jump & ~in_between, high, kinks)
    return located, np.where(is_jump, change, 0.0)


def _corners(f: Values, kinks: np.ndarray) -> np.ndarray:
    """Return the kinks, moved by a few doubles to where the parabolas on both sides meet.

    Halving stops at 16 doubles. Pieces that end beside the corner would shrink towards it, as if it
    were singular.
    """
    step = CORNER * (1 + np.abs(kinks))
    offsets = np.array([1.0, 2.0, 3.0])[:, None] * step
    with np.errstate(all="ignore"):
        right = f(kinks + offsets)
        left = f(kinks - offsets)
        height = np.array([3.0, -3.0, 1.0]) @ (right - left)
        change = np.array([-2.5, 4.0, -1.5]) @ (right + left) / step
        moved = -height / change
        near = np.abs(moved) <= MOST_MOVED * np.spacing(np.abs(kinks))
    return np.where(near, kinks + np.where(near, moved, 0.0), kinks)
