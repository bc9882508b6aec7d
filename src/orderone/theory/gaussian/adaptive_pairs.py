"""E f(x) g(y) for any two functions, with an error estimate: kinks, jumps and singular points are
found on the line first.

The plane is then cut along all lines where f or g is not one polynomial, so that the rule converges
on every piece. Its order grows until two agree; what they differ by is the error, together with
what singular points leave out. Where x and y determine each other, at c = 1 or -1, the average is
one over the line.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, broadcast, together
from orderone.core.inputs import ArrayLike, Function
from orderone.theory.gaussian.adaptive import Expectation, expect_at, kinks_of
from orderone.theory.gaussian.average import Values
from orderone.theory.gaussian.pairs import Cuts, plane_average
from orderone.theory.gaussian.panels import cut_line, doubling
from orderone.theory.gaussian.piecewise import Piecewise, resolve
from orderone.theory.gaussian.readable import readable

ORDERS = (12, 16, 24, 36)
ENOUGH = 1e-13
FAR = 18.5  # standard deviations of u and v: functions may grow like exponentials
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
    """E f(x) g(y) with correlation 1 - gap, and an error estimate; infinite if E abs(f) or E abs(g)
    is.

    `kinks` of both functions are found, if they are not given.

    `variance` is that of both, or a pair: that of x and of y. Each may be an array that broadcasts
    with `gap`.
    """
    xp, lengths, gaps = together(variance=variance, gap=gap)
    checks.variance(xp, lengths, "variance")
    checks.within(xp, gaps, 0, 2, "gap", "it is 1 - correlation")
    q = as_numpy(lengths)
    at = kinks_of(kinks)
    if q.ndim and len(q) != 2:
        raise ValueError(
            f"variance: expected one number, or those of x and of y; got shape {q.shape}; give a"
            " pair"
        )
    one = readable(f, "f")
    other = readable(g, "g")
    first, second = q if q.ndim else (q, q)
    broadcast(variance=first, gap=gaps)
    q1, q2, each = np.broadcast_arrays(first, second, as_numpy(gaps))
    found = [
        _average(one, other, a, b, c, at)
        for a, b, c in zip(q1.flat, q2.flat, each.flat, strict=True)
    ]
    value, error = np.array(found).T.reshape(2, *each.shape)
    return Expectation(value[()], error[()])


def _average(
    f: Values, g: Values, q1: Any, q2: Any, gap: Any, kinks: np.ndarray
) -> tuple[float, float]:
    one = float(np.sqrt(q1))
    two = float(np.sqrt(q2))
    if one == 0 or gap in (0, 2):
        ratio = (1 - gap) * two / one if one else 1.0
        joint_kinks = np.concatenate([kinks, kinks / (ratio or 1.0)])
        if one:
            return expect_at(lambda x: f(x) * g(ratio * x), one, joint_kinks)
        return expect_at(lambda y: f(0 * y) * g(y), two, joint_kinks)
    if two == 0:
        return expect_at(lambda x: f(x) * g(0 * x), one, kinks)
    alone = [expect_at(h, root, kinks) for h, root in ((f, one), (g, two))]
    if np.isinf(alone).any():
        return np.inf, np.inf
    reach = max(FAR * max(one, two), LEAST_REACH)
    cuts = _cuts([_pieces(h, reach, tuple(map(float, kinks))) for h in (f, g)], kinks, reach)
    lacks = [
        _lack(h, root, cuts, known) for h, root, known in ((f, one, alone[0]), (g, two, alone[1]))
    ]
    return _refined(lambda x, y: f(x) * g(y), q1, q2, gap, cuts, sum(lacks))


def _cuts(pieces: list[Piecewise | None], kinks: np.ndarray, reach: float) -> Cuts:
    """Of both functions; panels that double in size for one that cannot be resolved."""
    points = [doubling(reach) if found is None else _without_crowds(found) for found in pieces]
    bends = [np.array(found.kinks) for found in pieces if found is not None]
    return Cuts(
        np.unique(np.concatenate([kinks, [0.0], *bends])), np.unique(np.concatenate(points))
    )


def _without_crowds(found: Piecewise) -> np.ndarray:
    at = np.array(found.singular)[:, None]
    far = found.ends[(np.abs(found.ends - at) > BESIDE[0]).all(axis=0)]
    return np.concatenate([far, (at - BESIDE).ravel(), (at + BESIDE).ravel()])


def _lack(f: Values, root: float, cuts: Cuts, known: tuple[float, float]) -> float:
    """What the cuts miss of E f, relative to the average of abs(f)."""
    z, weights = cut_line(np.concatenate(cuts) / root, ORDERS[0])
    with np.errstate(all="ignore"):
        terms = np.where(weights > 0, f(root * z), 0.0) * weights
        lack = (abs(terms.sum() - known[0]) + known[1]) / np.abs(terms).sum()
    if np.isfinite(lack) and lack > ROUNDING:
        return float(lack)
    return 0.0


def _refined(f: Any, q1: Any, q2: Any, gap: Any, cuts: Cuts, lack: float) -> tuple[float, float]:
    """Rules of growing order, on a plane that is large enough, until two agree."""
    with np.errstate(all="ignore"):
        before = plane_average(f, q1, q2, gap, cuts, ORDERS[0], FAR, 0.0)
        value = before
        error = np.inf
        for order in ORDERS[1:]:
            value = plane_average(f, q1, q2, gap, cuts, order, FAR, 0.0)
            error = abs(value - before) + (lack + ROUNDING) * abs(value)
            if abs(value - before) <= ENOUGH * abs(value) or not np.isfinite(value):
                break
            before = value
    if np.isfinite(value):
        return (value, error)
    return (np.inf, np.inf)


@lru_cache(maxsize=64)
def _pieces(f: Values, reach: float, kinks: tuple[float, ...]) -> Piecewise | None:
    return resolve(f, reach, kinks)
