"""Points of averages over attention scores: trapezoidal for few keys, Sobol points for many.

Two queries with correlation rho have, over the keys of their sequences a and b, scores x and y that
are Gaussian with

    E[x x^T] = C_Q C_K F_aa,    E[y y^T] = C_Q C_K F_bb,    E[x y^T] = rho C_Q C_K F_ab

for unit scales. A softmax does not depend on a common shift of all scores of a sequence, so F is
centred first: fewer directions to average over. With a Gaussian weight, the convergence of the
trapezoidal rule depends on the smoothness of the integrand: a logistic function of sigma z has
poles at a distance pi / sigma from the real line, and a step h has the error
exp(-2 pi^2 / (sigma h)).
"""

from collections.abc import Iterator
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtri

if TYPE_CHECKING:
    from scipy.stats import qmc

LARGEST_STEP = 0.7  # largest step of a trapezoidal rule: exp(-2 pi^2 / h^2) is 3e-18
RULES = {  # dimensions: reach, h sigma
    0: (8.0, 0.5),
    1: (8.0, 0.5),
    2: (8.0, 0.5),
    3: (6.5, 1.0),
    4: (6.5, 1.0),
}
NEGLIGIBLE = 1e-13  # part of a variance that is rounding
ROUNDING = 2e-15  # rounding of a matrix, which centring leaves
NEGLIGIBLE_SINGLE = 1e-7  # the same in single precision
SOBOL = 128  # dimensions with Sobol numbers; smaller ones have pseudo-random numbers
REPETITIONS = 8
EDGE = 2.0**-32  # half the step of a Sobol number
FEW = 2**19  # most numbers that are cached for the next block


class Scores(NamedTuple):
    """Scores of two views, with weights that add up to 1."""

    x: np.ndarray  # (points, keys)
    y: np.ndarray  # (points, keys)
    weight: np.ndarray  # (points,)


def product_rule(first: np.ndarray, cross: np.ndarray, other: np.ndarray) -> Scores:
    """Return points of x and y with covariances `first`, `other`, and `cross` = E[x y^T].

    This function centres all three.
    """
    rounding = ROUNDING * max(np.trace(first), np.trace(other))
    first = _centred(first)
    cross = _centred(cross)
    other = _centred(other)
    left, whiten = factor(first, rounding=rounding, most=len(first) - 1)
    shared = cross.T @ whiten  # y = shared w + right v
    rest = other - shared @ shared.T
    right, _ = factor(rest, np.trace(other), rounding=rounding, most=len(other) - 1)
    spreads = [*np.maximum(np.ptp(left, axis=0), np.ptp(shared, axis=0)), *np.ptp(right, axis=0)]
    grid, weight = _grid(spreads)
    w = grid[:, : left.shape[1]]
    v = grid[:, left.shape[1] :]
    return Scores(w @ left.T, w @ shared.T + v @ right.T, weight)


def rule_points(number: int, spread: float) -> int:
    """Return the number of points of a product rule in `number` dimensions.

    Scores differ by `spread` in each dimension.
    """
    return (2 * _half(number, spread) + 1) ** number


def _half(number: int, spread: float) -> int:
    reach, fine = RULES[number]
    return int(np.ceil(reach / min(LARGEST_STEP, fine / max(spread, 1e-3))))


def _centred(matrix: np.ndarray) -> np.ndarray:
    return matrix - matrix.mean(0) - matrix.mean(1)[:, None] + matrix.mean()


def factor(
    matrix: np.ndarray,
    size: float | None = None,
    negligible: float = NEGLIGIBLE,
    rounding: float = 0.0,
    most: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return A with A A^T = matrix, and B with B^T A = 1; variances far below `size` count as 0.

    So do variances up to `rounding`, that of the matrix before it was centred. A has `most` columns
    or fewer, those of the largest variances.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    total = np.trace(matrix) if size is None else size
    positive = values > max(negligible * max(total, NEGLIGIBLE), rounding)
    if most is not None:
        positive[: len(values) - most] = False
    root = np.sqrt(values[positive])
    return vectors[:, positive] * root, vectors[:, positive] / root


def _grid(spreads: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return (points, dimensions), and weights that add up to 1."""
    reach = RULES[len(spreads)][0]
    lines: list[np.ndarray] = []
    weight = np.ones(1)
    for spread in spreads:
        line = reach * np.linspace(-1, 1, 2 * _half(len(spreads), spread) + 1)
        density = np.exp(-(line**2) / 2)
        lines.append(line)
        weight = np.multiply.outer(weight, density / density.sum())
    if not lines:
        return np.zeros((1, 0)), weight
    axes = np.meshgrid(*lines, indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1), weight.ravel()


def fields(directions: np.ndarray, points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw two independent Gaussian fields over all keys: (repetitions, points, keys) each.

    Their covariance is that of `directions`, (keys, directions). x and rho x + sqrt(1 - rho^2) z
    are scores of two queries. Every point is also used with -z: odd powers of sqrt(1 - rho^2)
    cancel, and the rest is smooth in rho.
    """
    number = 2 * directions.shape[1]
    normals = np.stack([_normals(number, points // 2, seed, k) for k in range(REPETITIONS)])
    x = normals[:, :, 0::2] @ directions.T
    z = normals[:, :, 1::2] @ directions.T
    return np.concatenate([x, x], axis=1), mirrored(z, axis=1)


def mirrored(z: np.ndarray, axis: int) -> np.ndarray:
    """Return every point and its mirror image."""
    return np.concatenate([z, -z], axis=axis)


def standard(
    number: int, points: int, seed: int, repetition: int, step: int
) -> Iterator[np.ndarray]:
    """Yield (points, number) of independent normals, `step` points at a time.

    The first numbers are Sobol's.
    """
    generator = np.random.default_rng((seed, repetition))
    first = min(number, SOBOL)
    sobol = _sobol(first, generator) if first else None
    for start in range(0, points, step):
        normals = generator.standard_normal((min(step, points - start), number), dtype=np.float32)
        if sobol is not None:
            normals[:, :first] = _gaussian(sobol.random(len(normals)))
        yield normals


def principal(F: np.ndarray, length: int) -> np.ndarray:
    """Return (keys, directions) of F, after centring each sequence of `length` keys.

    The largest direction comes first: Sobol numbers are best in their first dimensions.
    """
    blocks = F.reshape(len(F) // length, length, -1, length)
    centred = (
        blocks
        - blocks.mean(1, keepdims=True)
        - blocks.mean(3, keepdims=True)
        + blocks.mean((1, 3), keepdims=True)
    )
    single = centred.reshape(F.shape).astype(np.float32)
    directions, _ = factor(single, negligible=NEGLIGIBLE_SINGLE)
    return directions[:, ::-1]


def _normals(number: int, points: int, seed: int, repetition: int) -> np.ndarray:
    """Draw (points, number) in single precision; cached for the next block, if they are few."""
    draw = _cached if number * points <= FEW else _drawn
    return draw(number, points, seed, repetition)


def _drawn(number: int, points: int, seed: int, repetition: int) -> np.ndarray:
    generator = np.random.default_rng((seed, repetition))
    first = min(number, SOBOL)
    normals = np.empty((points, number), np.float32)
    if first:
        normals[:, :first] = _gaussian(_sobol(first, generator).random(points))
    normals[:, first:] = generator.standard_normal((points, number - first), dtype=np.float32)
    return normals


def _gaussian(uniform: np.ndarray) -> np.ndarray:
    return ndtri(np.clip(uniform, EDGE, 1 - EDGE))


_cached = lru_cache(maxsize=4 * REPETITIONS)(_drawn)


def _sobol(number: int, generator: np.random.Generator) -> "qmc.Sobol":
    from scipy.stats import qmc  # takes half a second, and few keys do not need it

    if "rng" in signature(qmc.Sobol).parameters:
        return qmc.Sobol(number, scramble=True, rng=generator)
    # name of this argument before scipy 1.15
    return qmc.Sobol(number, scramble=True, seed=generator)  # pyright: ignore[reportCallIssue]
