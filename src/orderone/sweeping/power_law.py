"""Power law with an offset through losses, and the interval of its value at another size.

    L(n)    = E + A n^-a                size n: width or depth
    L(n, D) = E + A n^-a + B D^-b       size and number of tokens (Hoffmann et al. 2022,
                                        arXiv 2203.15556, equation 2, with the size for the number
                                        of parameters, whose power is part of a)

with E, A, B >= 0 (losses that are not all positive are shifted first, see `FAR_BELOW`). For fixed
exponents the law is linear in E, A, B. The exponents run over a grid, which is refined where they
fit, and each point of the grid is solved exactly:

    chi^2(p) = sum_i (L_i - x_i p)^2 / v_i,      p = (E, A[, B]) >= 0

The interval at a target is the profile likelihood: the range of g p over all exponents and all
p >= 0 with

    chi^2(p) <= chi^2_min + t^2 s,      s = max(1, chi^2_min / freedom of the residuals)

with Student's t for the degrees of freedom of the variances v_i. The range of a linear function
over an ellipsoid within p >= 0 is attained in the interior of one of its faces (some entries of p
are zero). On every face both ends are known in closed form:

    p = p_hat +- sqrt(left) N^-1 g / sd,    sd = sqrt(g N^-1 g),    N = X^T V^-1 X

An interval of this kind stays honest where the usual error propagation fails: with three sizes many
exponents fit equally well, and the interval is then the range of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from orderone.sweeping.optimum import quantile

EXPONENTS = (0.02, 4.0)  # smallest and largest exponent of the grid
REFINEMENTS = 3
GRID = {1: 100, 2: 40}  # number of exponents of an axis, by the number of axes
FAR_BELOW = 20.0  # the offset may lie this many ranges of the losses below losses that are negative
ROUNDING = 1e-6  # smallest standard error of a loss, relative to it


@dataclass(frozen=True)
class Value:
    """A number with the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class PowerLaw:
    """Fit of a power law with an offset; `at` gives its value, `limit` its offset."""

    sizes: np.ndarray  # (points, axes): width or depth[, tokens]
    losses: np.ndarray  # (points,)
    variances: np.ndarray  # (points,) of the losses
    freedom: float  # degrees of freedom of the variances
    confidence: float = 0.95

    @property
    def axes(self) -> int:
        return self.sizes.shape[1]

    @cached_property
    def _floor(self) -> float:
        """Smallest offset: 0 for losses that are positive."""
        lowest = float(self.losses.min())
        if lowest > 0:
            return 0.0
        return lowest - FAR_BELOW * float(np.ptp(self.losses) + abs(lowest) + 1e-12)

    @cached_property
    def _exponents(self) -> np.ndarray:
        """Grid of exponents, (points of the grid, axes), over those that fit.

        It starts with all exponents. Each pass halves the distance of its points or more, within
        the box of the exponents that are not excluded.
        """
        box = np.tile(np.log(EXPONENTS), (self.axes, 1))  # (axes, 2)
        grid = self._mesh(box)
        for _ in range(REFINEMENTS):
            chi2 = np.min([face.feasible() for face in self._solved(grid)], axis=0)
            lowest = float(chi2.min())
            fits = np.log(grid[chi2 <= lowest + self._reach(lowest)])
            step = (box[:, 1] - box[:, 0]) / (GRID[self.axes] - 1)
            box = np.stack([fits.min(0) - step, fits.max(0) + step], axis=1)
            box = box.clip(*np.log(EXPONENTS))
            grid = self._mesh(box)
        return grid

    def _mesh(self, box: np.ndarray) -> np.ndarray:
        """Return the points of a grid over a box of logarithms of exponents."""
        sides = [np.exp(np.linspace(low, high, GRID[self.axes])) for low, high in box]
        mesh = np.meshgrid(*sides, indexing="ij")
        return np.stack([part.ravel() for part in mesh], axis=1)

    def _reach(self, chi2: float) -> float:
        """Return how far above the smallest chi^2 the interval reaches."""
        return quantile(self.freedom, self.confidence) ** 2 * self._excess(chi2)

    def _excess(self, chi2: float) -> float:
        if self.residual_freedom == 0:
            return 1.0
        return max(1.0, chi2 / self.residual_freedom)

    def _columns(self, sizes: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return 1, n^-a[, D^-b] for every exponent of the grid, relative to the smallest sizes."""
        ratios = np.log(sizes / self.sizes.min(0))  # (points, axes)
        powers = np.exp(-grid[:, None, :] * ratios[None])
        ones = np.ones((*powers.shape[:2], 1))
        return np.concatenate([ones, powers], axis=2)

    @cached_property
    def _faces(self) -> list["_Face"]:
        return self._solved(self._exponents)

    def _solved(self, grid: np.ndarray) -> list["_Face"]:
        """Return the fits of all faces at every point of a grid of exponents."""
        weights = 1 / np.maximum(self.variances, (ROUNDING * np.abs(self.losses)) ** 2 + 1e-300)
        matrix = self._columns(self.sizes, grid)
        faces: list[_Face] = []
        names = range(self.axes + 1)
        for number in range(1, self.axes + 2):
            for free in combinations(names, number):
                faces.append(_solve(matrix, self.losses - self._floor, weights, free))
        return faces

    @cached_property
    def _best(self) -> tuple["_Face", int]:
        """Face and point of the grid with the smallest chi^2."""
        chi2 = np.stack([face.feasible() for face in self._faces])
        face, point = np.unravel_index(int(chi2.argmin()), chi2.shape)
        return self._faces[int(face)], int(point)

    @property
    def chi2(self) -> float:
        """Sum of squared residuals in standard errors."""
        face, point = self._best
        return float(face.chi2[point])

    @property
    def residual_freedom(self) -> int:
        """Points minus parameters of the law; 0 if they are as many."""
        return max(len(self.losses) - 2 * self.axes - 1, 0)

    @property
    def excess(self) -> float:
        """Factor on the variances that makes the residuals as large as expected, at least 1."""
        return self._excess(self.chi2)

    @property
    def exponents(self) -> tuple[float, ...]:
        """Exponents a[, b] of the best fit."""
        _, point = self._best
        return tuple(float(value) for value in self._exponents[point])

    @property
    def coefficients(self) -> tuple[float, ...]:
        """E, A[, B] of the best fit, for L = E + A n^-a[ + B D^-b]."""
        face, point = self._best
        p = face.full(face.p[point])
        scaled = p[1:] * self.sizes.min(0) ** np.array(self.exponents)
        return (float(p[0]) + self._floor, *(float(value) for value in scaled))

    def at(self, sizes: Sequence[float]) -> Value:
        """Return the loss at these sizes (width or depth[, tokens])."""
        return self._value(self._columns(np.array([sizes], float), self._exponents)[:, 0, :])

    @cached_property
    def limit(self) -> Value:
        """Loss in the limit of large sizes: the offset."""
        only_offset = np.zeros((len(self._exponents), self.axes + 1))
        only_offset[:, 0] = 1
        return self._value(only_offset)

    def _value(self, direction: np.ndarray) -> Value:
        face, point = self._best
        value = float(direction[point] @ face.full(face.p[point]))
        limit = self.chi2 + self._reach(self.chi2)
        lows: list[float] = []
        highs: list[float] = []
        for each in self._faces:
            low, high = each.ends(direction, limit)
            lows.append(low)
            highs.append(high)
        return Value(
            value + self._floor,
            min(value, *lows) + self._floor,
            max(value, *highs) + self._floor,
        )


@dataclass(frozen=True)
class _Face:
    """Fits with some entries of p free and the others zero, one for every point of the grid."""

    free: tuple[int, ...]
    parameters: int
    p: np.ndarray  # (grid, free)
    chi2: np.ndarray  # (grid,)
    inverse: np.ndarray  # (grid, free, free): N^-1

    def full(self, p: np.ndarray) -> np.ndarray:
        """Return all entries of p."""
        entries = np.zeros(self.parameters)
        entries[list(self.free)] = p
        return entries

    def feasible(self) -> np.ndarray:
        """Return chi^2 where p >= 0, and inf elsewhere."""
        return np.where((self.p >= 0).all(1), self.chi2, np.inf)

    def ends(self, direction: np.ndarray, limit: float) -> tuple[float, float]:
        """Return the smallest and the largest value where chi^2 <= limit; inf, -inf if nowhere."""
        g = direction[:, list(self.free)]
        spread = np.einsum("gij,gj->gi", self.inverse, g)
        sd = np.sqrt(np.maximum(np.einsum("gi,gi->g", g, spread), 0))
        left = np.sqrt(np.maximum(limit - self.chi2, 0))
        step = np.where(sd > 0, left / np.where(sd > 0, sd, 1), 0)[:, None] * spread
        center = np.einsum("gi,gi->g", g, self.p)
        ends: list[float] = []
        for sign in (-1, 1):
            inside = (self.chi2 <= limit) & (self.p + sign * step >= 0).all(1)
            values = np.where(inside, center + sign * left * sd, -sign * np.inf)
            ends.append(float(values.min() if sign < 0 else values.max()))
        return ends[0], ends[1]


def _solve(
    matrix: np.ndarray, losses: np.ndarray, weights: np.ndarray, free: tuple[int, ...]
) -> _Face:
    """Fit the free entries of p by weighted least squares at every point of the grid."""
    columns = matrix[:, :, list(free)]
    normal = np.einsum("gki,k,gkj->gij", columns, weights, columns)
    inverse = np.linalg.inv(normal)
    p = np.einsum("gij,gkj,k,k->gi", inverse, columns, weights, losses, optimize=True)
    residuals = losses - np.einsum("gki,gi->gk", columns, p)
    return _Face(free, matrix.shape[2], p, (residuals**2 * weights).sum(1), inverse)
