"""Many roots at once, each in its bracket: the method of Chandrupatla 1997.

It takes inverse quadratic steps and otherwise bisects. Roots that have converged are no
longer evaluated, so a few difficult ones do not delay the others.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

EPS = np.finfo(float).eps
MOST_STEPS = 200

# f(x, rows): values at x[i] of the functions whose numbers are rows[i]
RowFunction: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


def bracketed(f: RowFunction, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return x with f(x, rows) = 0 between low and high, where f changes its sign.

    If f is zero at an end, the result is this end. If f has the same sign at both ends, the result
    is the end with the smaller absolute value.
    """
    rows = np.arange(len(low))
    if not len(rows):
        return np.empty(0)
    a = np.array(high, float)
    b = np.array(low, float)
    fa = f(a, rows)
    fb = f(b, rows)
    best = np.where(np.abs(fa) < np.abs(fb), a, b)
    unsolved = (np.sign(fa) * np.sign(fb) < 0) & (a != b)
    rows, a, b, fa, fb = (x[unsolved] for x in (rows, a, b, fa, fb))
    c = a
    fc = fa
    t = np.full(len(a), 0.5)
    for _ in range(MOST_STEPS):
        if not len(rows):
            break
        x = a + t * (b - a)
        fx = f(x, rows)
        same = np.sign(fx) == np.sign(fa)
        c = np.where(same, a, b)
        fc = np.where(same, fa, fb)
        b = np.where(same, b, a)
        fb = np.where(same, fb, fa)
        a = x
        fa = fx
        nearer = np.abs(fa) < np.abs(fb)
        best[rows] = np.where(nearer, a, b)
        room = 2 * EPS * np.abs(best[rows]) / np.maximum(np.abs(b - a), np.finfo(float).tiny)
        going = (room < 0.5) & (np.where(nearer, fa, fb) != 0)
        t = np.clip(_step(a, b, c, fa, fb, fc), room, 1 - room)
        rows, a, b, c, fa, fb, fc, t = (x[going] for x in (rows, a, b, c, fa, fb, fc, t))
    return best


def _step(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, fa: np.ndarray, fb: np.ndarray, fc: np.ndarray
) -> np.ndarray:
    """Return the position of the next point between a (0) and b (1)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        xi = (a - b) / (c - b)
        phi = (fa - fb) / (fc - fb)
        term1 = fa / (fb - fa) * fc / (fb - fc)
        term2 = (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        quadratic = term1 + term2
        trusted = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi) & np.isfinite(quadratic)
        return np.where(trusted, quadratic, 0.5)
