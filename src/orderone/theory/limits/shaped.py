"""Shaped activations: nonlinearities that come closer to the identity as the network grows.

    ReLU-like   phi_s(x) = s_+ max(x, 0) + s_- min(x, 0),   s_+- = 1 + c_+- / n^p            S3 (2.5)
    smooth      phi_s(x) = s phi(x / s),                    s = a n^p                        S3 (2.6)

Weights have variance c / n with c = 1 / E phi_s(g)^2, g standard normal. p = 1/2 with depth ~ width gives the SDE (2.7);
0 < p < 1/2 with depth ~ n^{2p} gives the ODE (3.18). A smooth phi needs phi(0) = 0 and phi'(0) = 1, and enters the drift
(2.9) only through phi''(0) and phi'''(0).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import array_api_compat
import numpy as np

from orderone.core.covariances import bounded
from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.given import Array, Count, Number
from orderone.core.reals import real

# phi -> (name in the array API, phi''(0), phi'''(0))
SMOOTH = {
    "tanh": ("tanh", 0.0, -2.0),
    "sin": ("sin", 0.0, -1.0),
    "atan": ("atan", 0.0, -2.0),
    "asinh": ("asinh", 0.0, -1.0),
    "expm1": ("expm1", 1.0, 1.0),
}
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


@dataclass(frozen=True)
class ShapedReLU:
    c_plus: Number = 0.0
    c_minus: Number = -1.0

    def __post_init__(self) -> None:
        real(self.c_plus, "c_plus")
        real(self.c_minus, "c_minus")

    @property
    def drift(self) -> float:
        """The factor of sqrt(1 - rho^2) - rho arccos(rho) in S3 (2.8). 0 for c_plus = c_minus: a linear network."""
        return (self.c_plus - self.c_minus) ** 2 / (2 * pi)

    def slopes(self, width: Count, p: Number = 0.5) -> tuple[float, float]:
        """The slopes for x > 0 and x < 0 at this width: S3 (2.5)."""
        shrink = _rate(width, p)
        return 1 + self.c_plus / shrink, 1 + self.c_minus / shrink

    def normalizer(self, width: Count, p: Number = 0.5) -> float:
        """c with c E phi_s(g)^2 = 1: S3 (B.2)."""
        plus, minus = self.slopes(width, p)
        if plus == minus == 0:
            raise ValueError(f"c_plus and c_minus: the slopes at width {width} are both zero; expected another c or p")
        return 2 / (plus**2 + minus**2)

    def at(self, width: Count, p: Number = 0.5) -> Callable[[Array], Array]:
        """phi_s of this width, elementwise on any array."""
        plus, minus = self.slopes(width, p)

        def phi_s(x: Array) -> Array:
            return plus * bounded(x, low=0.0) + minus * bounded(x, high=0.0)

        return phi_s


@dataclass(frozen=True)
class ShapedSmooth:
    """`phi` is one of the names of `SMOOTH`, or a function with its derivatives `second` and `third` at 0."""

    phi: Any = "tanh"
    a: Number = 1.0
    second: Number | None = None
    third: Number | None = None

    def __post_init__(self) -> None:
        if real(self.a, "a") == 0:
            raise ValueError("a: expected a number other than 0, got 0; the scale of (2.6) is a n^p")
        if not callable(self.phi):
            one_of(self.phi, SMOOTH, "activation phi")

    @property
    def derivatives(self) -> tuple[float, float]:
        """phi''(0) and phi'''(0)."""
        if callable(self.phi):
            self.check_start(NODES)
            found = _derivatives(self.phi)
        else:
            found = SMOOTH[one_of(self.phi, SMOOTH, "activation phi")][1:]
        given = (self.second, self.third)
        return tuple(f if g is None else real(g, "derivative of phi") for f, g in zip(found, given, strict=True))  # type: ignore

    def check_start(self, like: Array) -> None:
        """phi(0) = 0 and phi'(0) = 1, asked of phi with arrays of the kind of `like`."""
        xp, h = array_api_compat.array_namespace(like), 1e-4
        try:
            points = xp.asarray([-h, 0.0, h], dtype=like.dtype, device=array_api_compat.device(like))
            below, start, above = (float(y) for y in self.function(xp)(points))
        except Exception as error:  # the user's function may raise anything
            kind = type(like).__name__
            raise ValueError(
                f"phi: expected a function of {kind}s, got {self.phi!r}, which raised {error!r}"
            ) from error
        slope = (above - below) / (2 * h)
        if not (abs(start) < 1e-9 and abs(slope - 1) < 1e-6):
            raise ValueError(
                f"phi: expected phi(0) = 0 and phi'(0) = 1, got {start:.6g} and {slope:.6g}; "
                "give lambda x: (phi(x) - phi(0)) / phi'(0)"
            )

    def scale(self, width: Count, p: Number = 0.5) -> float:
        return self.a * _rate(width, p)

    def function(self, xp: Any) -> Callable[[Array], Array]:
        """phi for arrays of this namespace."""
        return self.phi if callable(self.phi) else getattr(xp, SMOOTH[one_of(self.phi, SMOOTH, "activation phi")][0])

    def at(self, width: Count, p: Number = 0.5) -> Callable[[Array], Array]:
        s = self.scale(width, p)
        return lambda x: s * self.function(array_api_compat.array_namespace(x))(x / s)

    def normalizer(self, width: Count, p: Number = 0.5, like: Array = NODES) -> float:
        """c with c E phi_s(g)^2 = 1, by Gauss-Hermite quadrature; `like` is an array of the kind that phi takes."""
        xp = array_api_compat.array_namespace(like)
        nodes = xp.asarray(NODES, dtype=like.dtype, device=array_api_compat.device(like))
        values = np.asarray([float(v) for v in self.at(width, p)(nodes)])
        return 1 / float(WEIGHTS @ values**2 / sqrt(2 * pi))


def _rate(width: Count, p: Number) -> float:
    return count(width, "width") ** real(p, "p", least=0)


def _derivatives(phi: Callable[[Array], Array], h: float = 0.02) -> tuple[float, float]:
    """phi'' and phi''' at 0 by central differences of eighth and sixth order: about ten and eight digits."""
    x = h * np.arange(-4, 5)
    y = np.asarray(phi(x), dtype=float)
    odd, even = (y[5:] - y[3::-1]) / 2, (y[5:] + y[3::-1]) / 2 - y[4]
    second = 2 * even @ [8 / 5, -1 / 5, 8 / 315, -1 / 560] / h**2
    third = 2 * odd @ [-61 / 30, 169 / 120, -3 / 10, 7 / 240] / h**3
    return float(second), float(third)
