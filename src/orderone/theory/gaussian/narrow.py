"""Narrow features of a function: bumps, dips and single steps that polynomials have missed.

No number of samples finds every feature. Here f is compared with its polynomials at points of a
fine grid, so that a feature is found with certainty if it is wider than

    FINEST * max(1, abs(x))     for abs(x) up to FARTHEST

and with a probability of its width over this one if it is narrower. Functions of single numbers are
slow; for them the grid is that of OF_NUMBERS. The points that disagree become points at which f is
cut; the search of `piecewise` then resolves the feature. Users pass narrower features, and those
farther away, as `kinks`.
"""

from functools import lru_cache

import numpy as np

from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.piecewise import GOLDEN, NO_DIGITS, Piecewise, resolve
from orderone.theory.gaussian.readable import ByNumber, Vectorised

FINEST = 2.0**-15
OF_NUMBERS = 2.0**-11
FARTHEST = 16.0
AGREES = 1e-9  # largest difference relative to f nearby; polynomials are exact to 1e-13
NOISE = 1e-12  # the same relative to f near zero: tails are often differences of such numbers
MOST_FEATURES = 64
ROUNDS = 3  # features beside each other are found one after the other
AT_ONCE = 2**13  # arguments whose polynomials fit into the cache


def narrow_features(f: Values, kinks: tuple[float, ...] = ()) -> tuple[float, ...] | None:
    """Return a point inside each feature that `resolve` misses; None if f cannot be resolved."""
    points: tuple[float, ...] = ()
    x = _grid(FINEST)
    if isinstance(f, Vectorised) and isinstance(f.on_array, ByNumber):
        x = _grid(OF_NUMBERS)
    with np.errstate(all="ignore"):
        values = f(x.copy())  # f may overwrite its argument
    for _ in range(ROUNDS):
        pieces = resolve(f, FARTHEST, kinks + points)
        if pieces is None:
            return None
        missed = _centres(x, _differs(x, values, pieces))
        if not len(missed):
            return points
        points += tuple(missed.tolist())
        if len(points) > MOST_FEATURES:
            return None
    return None


@lru_cache
def _grid(finest: float) -> np.ndarray:
    """Return points at irregular distances, so that a function with a period does not hide."""
    step = finest / 1.5  # and at most half a step more
    near = np.arange(step, 1.0, step)
    far = np.exp(np.arange(0.0, np.log(FARTHEST), step))
    outward = np.concatenate([near, far])
    moved = outward * (1 - step / 2 * (np.arange(len(outward)) * GOLDEN % 1))
    points = np.concatenate([-moved[::-1], moved])
    points.flags.writeable = False
    return points


def _differs(x: np.ndarray, values: np.ndarray, pieces: Piecewise) -> np.ndarray:
    """Return whether f differs from its polynomials at each point."""
    differs = np.empty(len(x), bool)
    central = np.abs(values[np.abs(x) <= 1])
    noise = NOISE * central[np.isfinite(central)].max(initial=0)
    with np.errstate(all="ignore"):
        for start in range(0, len(x), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            expected, size = pieces.values(x[part])
            room = np.maximum(AGREES * size, noise * np.maximum(1, np.abs(x[part])))
            room = np.maximum(room, NO_DIGITS)
            differs[part] = np.abs(values[part] - expected) > room
    return differs & np.isfinite(values)


def _centres(x: np.ndarray, differs: np.ndarray) -> np.ndarray:
    """Return the middle point of each run of neighbouring points that differ."""
    at = np.flatnonzero(differs)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    return np.array([x[run[len(run) // 2]] for run in runs if len(run)])
