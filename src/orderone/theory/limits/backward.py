"""Backward equation of a diffusion on a line, for means E g(y_t) over paths that start at y.

    u_t = b(y) u_y + u_yy / 2,    u(0, y) = g(y),    u(t, y) = E g(y_t)

Space: Galerkin's method with continuous polynomials on pieces of the line,

    <v, u_t> = <v, b u_y> - <v_y, u_y> / 2      for all v of the same kind

with free ends (u_y = 0) or ends fixed at g. A g that is not smooth enters only through its
integrals with v.

Time: exp(t L) is an integral of the resolvent over a parabola around the spectrum,

    z = N / t (.1309 - .1194 s^2 + i s / 4)

The trapezoidal rule in s converges as 2.85^{-N} for any L, stiff or not: L. N. Trefethen,
J. A. C. Weideman and T. Schmelzer, *Talbot quadratures and rational approximations*, BIT 46
(2006).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, pi

import numpy as np
from numpy.polynomial import Chebyshev
from numpy.polynomial.legendre import leggauss
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu

Function = Callable[[np.ndarray], np.ndarray]
DEGREE = 6  # degree of the polynomials
PARTS = 16  # parts of a piece
POINTS = 16  # Gauss points in a part: integrals over kinks of g are exact to (piece / 256)^2
NODES = 32  # nodes on the parabola: 2.85^-32 is below rounding
# Longest time for one parabola: the drift widens the spectrum, which must fit inside.
LONGEST = 5.0


@dataclass(frozen=True)
class Backward:
    """Backward equation on pieces of the line."""

    cuts: np.ndarray  # ends of the pieces, in order
    drift: Function
    fixed_left: bool  # whether u is fixed at g at the left end too, as at the right end

    def mean(self, g: Function, y: float, time: float) -> float:
        """Return u(time, y); for y beyond an end, return u at this end."""
        u = self._projected(g)
        steps = ceil(time / LONGEST)
        solvers = self._solvers(time / steps)
        for _ in range(steps):
            old = self._mass @ u
            u = np.sum([(weight * solve(old)).real for weight, solve in solvers], axis=0)
        return self._at(u, y)

    def _solvers(self, time: float) -> list[tuple[complex, Callable[[np.ndarray], np.ndarray]]]:
        """Return weights and (z - L)^{-1} in exp(time L) u = Re sum weight (z - L)^{-1} u.

        The sum runs over the upper half of the parabola.
        """
        s = pi * np.arange(1, NODES, 2) / NODES
        z = NODES / time * (0.1309 - 0.1194 * s**2 + 0.25j * s)
        slope = NODES / time * (-0.2388 * s + 0.25j)
        weights = 2 * np.exp(z * time) * slope / 1j / NODES
        solvers = []
        for weight, node in zip(weights, z, strict=True):
            factors = splu(csc_array(node * self._mass - self._generator))
            solvers.append((weight, factors.solve))
        return solvers

    # --- polynomials on pieces --------------------------------------------------------------------

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return middles, half lengths, and indices of unknowns (pieces, DEGREE + 1).

        Neighbouring pieces share the unknown at their common end.
        """
        half = np.diff(self.cuts) / 2
        middle = self.cuts[:-1] + half
        unknowns = np.arange(len(half))[:, None] * DEGREE + np.arange(DEGREE + 1)
        return middle, half, unknowns

    @cached_property
    def _quadrature(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return points in [-1, 1], weights, and the basis and its derivative at the points.

        The last two have the shape (points, DEGREE + 1).
        """
        x, w = leggauss(POINTS)
        centre = (2 * np.arange(PARTS) + 1) / PARTS - 1
        x = (centre[:, None] + x / PARTS).ravel()
        w = np.tile(w / PARTS, PARTS)
        basis = [_interpolant(unit) for unit in np.eye(DEGREE + 1)]
        values = np.stack([polynomial(x) for polynomial in basis], 1)
        slopes = np.stack([polynomial.deriv()(x) for polynomial in basis], 1)
        return x, w, values, slopes

    @cached_property
    def _points(self) -> np.ndarray:
        middle, half, _ = self._pieces
        return middle[:, None] + half[:, None] * self._quadrature[0]

    @cached_property
    def _mass(self) -> csc_array:
        _, w, B, _ = self._quadrature
        return self._assembled(self._pieces[1][:, None, None] * ((B.T * w) @ B))

    @cached_property
    def _generator(self) -> csc_array:
        _, w, B, D = self._quadrature
        diffusion = (D.T * w) @ D / self._pieces[1][:, None, None] / 2
        transport = np.einsum("qi,eq,qj->eij", B, w * self.drift(self._points), D, optimize=True)
        free = np.ones(self._pieces[2].max() + 1)
        free[-1] = 0
        free[0] = not self.fixed_left
        return csc_array(diags_array(free) @ self._assembled(transport - diffusion))

    def _assembled(self, blocks: np.ndarray) -> csc_array:
        rows = np.repeat(self._pieces[2][:, :, None], DEGREE + 1, 2)
        return csc_array((blocks.ravel(), (rows.ravel(), rows.transpose(0, 2, 1).ravel())))

    def _projected(self, g: Function) -> np.ndarray:
        _, w, B, _ = self._quadrature
        _, half, unknowns = self._pieces
        sums = np.einsum("qi,eq,e->ei", B, w * g(self._points), half, optimize=True)
        return splu(self._mass).solve(np.bincount(unknowns.ravel(), sums.ravel()))

    def _at(self, u: np.ndarray, y: float) -> float:
        middle, half, unknowns = self._pieces
        y = min(max(y, self.cuts[0]), self.cuts[-1])
        piece = int(np.clip(np.searchsorted(self.cuts, y) - 1, 0, len(half) - 1))
        return float(_interpolant(u[unknowns[piece]])((y - middle[piece]) / half[piece]))


def _interpolant(values: np.ndarray) -> Chebyshev:
    """Return the polynomial with these values at -cos(pi k / DEGREE)."""
    nodes = -np.cos(pi * np.arange(DEGREE + 1) / DEGREE)
    return Chebyshev.fit(nodes, values, DEGREE, domain=[-1, 1])
