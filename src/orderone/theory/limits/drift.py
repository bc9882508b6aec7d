"""Drift flows V' = b(V) of the covariance SDE that keep every V a covariance.

ReLU-like, S3 (2.8) (erratum S3.2: (3.7) and (3.12) print another sign):

    b_ab    = nu(rho_ab) sqrt(V_aa V_bb)
    nu(rho) = k (sqrt(1 - rho^2) - rho arccos(rho)),    k = (c_+ - c_-)^2 / (2 pi)

The diagonal is constant. One Euler step is rho -> (1 - pi k h) rho + pi k h (2 K_1(rho)): for
pi k h <= 1 a mixture of two kernels, the linear one and that of a ReLU layer, and so a kernel.

Smooth, S3 (2.9), with alpha = phi''(0)^2 / 4a^2 and beta = phi'''(0) / 2a^2: the sum of two flows,

    V_ab' = alpha (V_aa V_bb + 2 V_ab^2 - 3 V_ab)
    V_ab' = beta V_ab (V_aa + V_bb - 2)

An Euler step of the first is made of sums and elementwise products of covariances if
3 alpha h <= 1. The second is solved exactly: V_aa' = 2 beta V_aa (V_aa - 1), and correlations are
constant.

Heun's method is u/2 + E(E(u))/2 with the Euler step E, again a mixture: second order, and the
result is a covariance. Arrays are (m, m, paths). Only the lower triangle is read and written;
callers mirror it where they need the upper one.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from dataclasses import dataclass
from math import ceil, exp, pi
from types import ModuleType
from typing import ClassVar, TypeAlias

import array_api_compat

from orderone.core.covariances import bounded
from orderone.core.errors import InputError
from orderone.core.inputs import Array

MOST_PARTS = 100
LARGEST_GROWTH = 1e4  # of a variance in one step; `covariance_sde` then stops the path


@dataclass(frozen=True)
class ReLUDrift:
    """Drift of ReLU-like activations: S3 (2.8)."""

    k: float
    scale_free: ClassVar[bool] = True  # V -> D V D for a diagonal D commutes with the SDE

    def flow(self, V: Array, h: float) -> Array:
        """Apply the drift to V for a time h, row by row, in place."""
        if self.k == 0:
            return V
        xp = array_api_compat.array_namespace(V)
        norm = xp.sqrt(diagonal(V))
        inverse = 1 / xp.where(norm > 0, norm, xp.ones_like(norm))
        parts = _parts(pi * self.k * h)
        for i in range(1, V.shape[0]):
            rho = V[i, :i] * (inverse[:i] * inverse[i])
            for _ in range(parts):
                rho = self._heun(rho, h / parts, xp)
            V[i, :i] = rho * (norm[:i] * norm[i])
        return V

    def rate(self, V: Array) -> Array:
        """Return b(V)."""
        xp = array_api_compat.array_namespace(V)
        norm = xp.sqrt(diagonal(V))
        scale = norm[:, None] * norm[None, :]
        rho = bounded(V / xp.where(scale > 0, scale, xp.ones_like(scale)), -1.0, 1.0)
        return self.k * self.bend(rho, xp) * scale

    @staticmethod
    def bend(rho: Array, xp: ModuleType) -> Array:
        """Return nu / k."""
        return xp.sqrt((1 - rho) * (1 + rho)) - rho * xp.acos(rho)

    def _heun(self, rho: Array, h: float, xp: ModuleType) -> Array:
        rho = bounded(rho, -1.0, 1.0)
        once = bounded(rho + h * self.k * self.bend(rho, xp), -1.0, 1.0)
        return (rho + once + h * self.k * self.bend(once, xp)) / 2


@dataclass(frozen=True)
class SmoothDrift:
    """Drift of smooth activations: S3 (2.9)."""

    alpha: float
    beta: float
    scale_free: ClassVar[bool] = False

    def flow(self, V: Array, h: float) -> Array:
        """Return V after the drift has acted for a time h."""
        parts = _parts(3 * self.alpha * h)
        for _ in range(parts):
            V = self._bend(V, h / parts / 2)
            V = self._stretch(V, h / parts)
            V = self._bend(V, h / parts / 2)
        return V

    def rate(self, V: Array) -> Array:
        """Return b(V)."""
        d = diagonal(V)
        product = d[:, None] * d[None, :]
        total = d[:, None] + d[None, :]
        return self.alpha * (product + V * (2 * V - 3)) + self.beta * V * (total - 2)

    def _bend(self, V: Array, h: float) -> Array:
        if self.alpha == 0:
            return V
        without = SmoothDrift(self.alpha, 0.0)
        once = V + h * without.rate(V)
        return (V + once + h * without.rate(once)) / 2

    def _stretch(self, V: Array, h: float) -> Array:
        """Solve the second flow: V_aa(h) / V_aa(0) = 1 / (V_aa - (V_aa - 1) e^{2 beta h}).

        Growth is bounded by `LARGEST_GROWTH`.
        """
        if self.beta == 0:
            return V
        d = diagonal(V)
        left = bounded(d - (d - 1) * exp(2 * self.beta * h), 1 / LARGEST_GROWTH)
        grown = left**-0.5
        return V * grown[:, None] * grown[None, :]


def _parts(strength: float) -> int:
    """Return the number of parts of a flow for which each Euler step is a mixture."""
    if strength > MOST_PARTS:
        raise InputError(
            f"dt: expected a smaller step; the drift of one step is {strength:.3g}, the largest"
            f" allowed is {MOST_PARTS}; decrease dt, |c_plus - c_minus| or 1/a",
            "step-too-large",
            argument="dt",
        )
    return max(1, ceil(strength))


def diagonal(V: Array) -> Array:
    """Return V_aa, (m, paths)."""
    xp = array_api_compat.array_namespace(V)
    return xp.stack([V[i, i] for i in range(V.shape[0])])


Drift: TypeAlias = ReLUDrift | SmoothDrift
