"""E f(x) g(y) for any two functions f and g, with an error estimate.

Kinks, jumps and singular points are located on the line first. The plane is then cut along all
lines where f or g is not one polynomial, so that the rule converges on every piece. Its order grows
until two orders agree. The error is their difference, plus the part that singular points leave out.
If x and y determine each other, at c = 1 or -1, the average is over a line.
"""

from functools import lru_cache

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, broadcast, together
from orderone.core.errors import InputError
from orderone.core.inputs import ArrayLike, Function
from orderone.theory.gaussian.adaptive import Expectation, expect_at, kinks_of, with_features
from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.pairs import Cuts, Integrand, plane_average
from orderone.theory.gaussian.panels import cut_line, doubling
from orderone.theory.gaussian.piecewise import Piecewise, resolve
from orderone.theory.gaussian.readable import readable

ORDERS = (12, 16, 24, 36)
ENOUGH = 1e-13
FAR = 18.5  # range of u and v in standard deviations: functions may grow exponentially
LEAST_REACH = 8.0
ROUNDING = 1e-14
BESIDE = 0.01 * 4.0 ** -np.arange(16)  # panels that shrink towards a singular point


def expect_pair(
    f: Function,
    g: Function,
    variance: ArrayLike = (1.0, 1.0),
    gap: ArrayLike = 1.0,
    kinks: ArrayLike = (),
) -> Expectation:
    """Return E f(x) g(y) for the correlation 1 - gap, and an error estimate.

    Both are infinite if E abs(f) or E abs(g) is. `kinks` are optional: they are located
    automatically, as far as `expect` locates them.

    `variance` is one number for both, or a pair: the variance of x and that of y. Each may be an
    array that broadcasts with `gap`.
    """
    xp, lengths, gaps = together(variance=variance, gap=gap)
    checks.variance(xp, lengths, "variance")
    checks.within(xp, gaps, 0, 2, "gap", "pass 1 - correlation")
    q = as_numpy(lengths)
    if q.ndim and len(q) != 2:
        raise InputError(
            f"variance: expected one number, or a pair for x and y; got shape {q.shape}",
            argument="variance",
        )
    f_values = readable(f, "f")
    g_values = readable(g, "g")
    different = dict.fromkeys((f_values, g_values))
    known_kinks = with_features(kinks_of(kinks), *different)
    variance_x, variance_y = q if q.ndim else (q, q)
    broadcast(variance=variance_x, gap=gaps)
    q1, q2, every_gap = np.broadcast_arrays(variance_x, variance_y, as_numpy(gaps))
    results = [
        _average(f_values, g_values, *numbers, known_kinks)
        for numbers in zip(q1.flat, q2.flat, every_gap.flat, strict=True)
    ]
    value, error = np.array(results).T.reshape(2, *every_gap.shape)
    return Expectation(value[()], error[()])


def _average(
    f: Values, g: Values, q1: float, q2: float, gap: float, kinks: np.ndarray
) -> tuple[float, float]:
    root1 = float(np.sqrt(q1))
    root2 = float(np.sqrt(q2))
    if root1 == 0:
        return expect_at(lambda y: f(0 * y) * g(y), root2, np.concatenate([kinks, kinks]))
    if gap in (0, 2):
        ratio = (1 - gap) * root2 / root1
        joint_kinks = np.concatenate([kinks, kinks / (ratio or 1.0)])
        return expect_at(lambda x: f(x) * g(ratio * x), root1, joint_kinks)
    if root2 == 0:
        return expect_at(lambda x: f(x) * g(0 * x), root1, kinks)
    average_f = expect_at(f, root1, kinks)
    if np.isinf(average_f).any():
        return np.inf, np.inf
    average_g = average_f
    if g != f or root2 != root1:
        average_g = expect_at(g, root2, kinks)
    if np.isinf(average_g).any():
        return np.inf, np.inf
    if gap == 1:  # independent
        value = average_f[0] * average_g[0]
        error = abs(average_f[0]) * average_g[1] + abs(average_g[0]) * average_f[1]
        return value, error + ROUNDING * abs(value)
    reach = max(FAR * max(root1, root2), LEAST_REACH)
    known = tuple(map(float, kinks))
    cuts = _cuts([_pieces(f, reach, known), _pieces(g, reach, known)], kinks, reach)
    missing = _missing_share(f, root1, cuts, average_f) + _missing_share(g, root2, cuts, average_g)
    size_of_f = _size(f, root1, kinks)
    size_of_g = size_of_f
    if g != f or root2 != root1:
        size_of_g = _size(g, root2, kinks)
    size = size_of_f * size_of_g
    return _refined(lambda x, y: f(x) * g(y), q1, q2, gap, cuts, missing, size)


def _cuts(pieces: list[Piecewise | None], kinks: np.ndarray, reach: float) -> Cuts:
    """Return the cuts for both functions; one that cannot be resolved gets panels that double."""
    points = []
    all_kinks = [kinks, np.zeros(1)]
    for piecewise in pieces:
        if piecewise is None:
            points.append(doubling(reach))
        else:
            points.append(_fewer_ends(piecewise))
            all_kinks.append(np.array(piecewise.kinks))
    return Cuts(np.unique(np.concatenate(all_kinks)), np.unique(np.concatenate(points)))


def _fewer_ends(piecewise: Piecewise) -> np.ndarray:
    """Return the ends of the pieces, with fewer of them beside singular points."""
    at = np.array(piecewise.singular)[:, None]
    far = piecewise.ends[(np.abs(piecewise.ends - at) > BESIDE[0]).all(axis=0)]
    return np.concatenate([far, (at - BESIDE).ravel(), (at + BESIDE).ravel()])


def _missing_share(f: Values, root: float, cuts: Cuts, average: tuple[float, float]) -> float:
    """Return the part of E f that the cuts miss, relative to the average of abs(f).

    `average` is E f and its error, from the line.
    """
    value, error = average
    z, weights = cut_line(np.concatenate([cuts.kinks, cuts.points]) / root, ORDERS[0])
    with np.errstate(all="ignore"):
        terms = np.where(weights > 0, f(root * z), 0.0) * weights
        missing = (abs(terms.sum() - value) + error) / np.abs(terms).sum()
    if np.isfinite(missing) and missing > ROUNDING:
        return float(missing)
    return 0.0


def _size(f: Values, root: float, kinks: np.ndarray) -> float:
    """Return the root of E f^2, or 0 if it is infinite: the scale of averages that vanish."""
    with np.errstate(all="ignore"):
        square = expect_at(lambda x: f(x) ** 2, root, kinks)[0]
    if np.isfinite(square):
        return float(np.sqrt(square))
    return 0.0


def _refined(
    f: Integrand, q1: float, q2: float, gap: float, cuts: Cuts, missing: float, size: float
) -> tuple[float, float]:
    """Integrate over a plane that is large enough, with rules of growing order until two agree.

    They agree to the digits of the value, or of a hundredth of `size` if the value is smaller.
    """
    with np.errstate(all="ignore"):
        before = plane_average(f, q1, q2, gap, cuts, ORDERS[0], FAR, 0.0)
        value = before
        error = np.inf
        for order in ORDERS[1:]:
            value = plane_average(f, q1, q2, gap, cuts, order, FAR, 0.0)
            error = abs(value - before) + (missing + ROUNDING) * abs(value)
            close = abs(value - before) <= ENOUGH * max(abs(value), size / 100)
            if close or not np.isfinite(value):
                break
            before = value
    if np.isfinite(value):
        return value, error
    return np.inf, np.inf


@lru_cache(maxsize=64)
def _pieces(f: Values, reach: float, kinks: tuple[float, ...]) -> Piecewise | None:
    return resolve(f, reach, kinks)
