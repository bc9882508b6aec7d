"""Shaped activations: nonlinearities that tend to the identity as the network grows.

    ReLU-like   phi_s(x) = s_+ max(x, 0) + s_- min(x, 0),   s_+- = 1 + c_+- / n^p           S3 (2.5)
    smooth      phi_s(x) = s phi(x / s),                    s = a n^p                       S3 (2.6)

Weights have variance c / n with c = 1 / E phi_s(g)^2, g standard normal. p = 1/2 with depth ~ width
gives the SDE (2.7); 0 < p < 1/2 with depth ~ n^{2p} gives the ODE (3.18). p = 0 is an activation
that does not change with the width; p > 1/2, whose limit is a linear network, is an error. A smooth
phi needs phi(0) = 0 and phi'(0) = 1, and enters the drift (2.9) only through phi''(0) and
phi'''(0).

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, pi
from types import ModuleType
from typing import Annotated, TypeAlias

import array_api_compat
import numpy as np

from orderone.core.covariances import bounded, like, numpy
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Array, Count, Number, UserInput
from orderone.core.reals import real
from orderone.theory.activations import get
from orderone.theory.activations.base import Activation

# the name of an activation, or a function of arrays with phi(0) = 0 and phi'(0) = 1
PhiInput: TypeAlias = Annotated[str | Callable[..., object], UserInput]

# phi -> (name in the array API, phi''(0), phi'''(0))
SMOOTH: dict[str, tuple[str, float, float]] = {
    "tanh": ("tanh", 0.0, -2.0),
    "sin": ("sin", 0.0, -1.0),
    "atan": ("atan", 0.0, -2.0),
    "asinh": ("asinh", 0.0, -1.0),
    "expm1": ("expm1", 1.0, 1.0),
}
LARGEST_SLOPE = 1e100  # bound of c, whose square must not overflow
STEPS = 0.5 ** np.arange(1, 25)  # steps of differences; the best one depends on phi


@dataclass(frozen=True)
class ShapedReLU:
    """Shaped ReLU, a line with two slopes that both tend to 1: S3 (2.5)."""

    c_plus: Number = 0.0
    c_minus: Number = -1.0

    def __post_init__(self) -> None:
        for name in ("c_plus", "c_minus"):
            slope = real(getattr(self, name), name, least=-LARGEST_SLOPE, most=LARGEST_SLOPE)
            object.__setattr__(self, name, slope)

    @property
    def drift(self) -> float:
        """Return the factor of sqrt(1 - rho^2) - rho arccos(rho) in S3 (2.8).

        It is 0 for c_plus = c_minus: a linear network.
        """
        return (self.c_plus - self.c_minus) ** 2 / (2 * pi)

    def slopes(self, width: Count, p: Number = 0.5) -> tuple[float, float]:
        """Return the slopes for x > 0 and x < 0 at this width: S3 (2.5)."""
        shrink = _rate(width, p)
        return 1 + self.c_plus / shrink, 1 + self.c_minus / shrink

    def normalizer(self, width: Count, p: Number = 0.5) -> float:
        """Return c with c E phi_s(g)^2 = 1: S3 (B.2)."""
        plus, minus = self.slopes(width, p)
        if plus == minus == 0:
            raise InputError(
                "c_plus, c_minus: expected a slope other than 0, but both slopes are 0 at the width"
                f" {width}; change c or p",
                argument="c_plus",
            )
        return 2 / (plus**2 + minus**2)

    def at(self, width: Count, p: Number = 0.5) -> Callable[[Array], Array]:
        """Return phi_s of this width, an elementwise function of any array."""
        plus, minus = self.slopes(width, p)

        def phi_s(x: Array) -> Array:
            if not hasattr(x, "dtype"):
                x = np.asarray(x, dtype=float)
            return plus * bounded(x, low=0.0) + minus * bounded(x, high=0.0)

        return phi_s


@dataclass(frozen=True)
class ShapedSmooth:
    """Shaped smooth activation: S3 (2.6).

    `phi` is one of the names of `SMOOTH`, or a function; `second` and `third` are its derivatives
    at 0, by default computed numerically.
    """

    phi: PhiInput = "tanh"
    a: Number = 1.0
    second: Number | None = None
    third: Number | None = None

    def __post_init__(self) -> None:
        scale = real(self.a, "a")
        if not 1e-100 <= abs(scale) <= 1e100:
            raise InputError(
                f"a: expected a number with 1e-100 <= |a| <= 1e100, got {self.a!r}; the scale of"
                " phi is a n^p",
                argument="a",
            )
        object.__setattr__(self, "a", scale)
        if not callable(self.phi):
            one_of(self.phi, SMOOTH, "activation phi")

    @cached_property
    def activation(self) -> Activation:
        """Return phi with its means over normal numbers.

        phi may be a function of arrays, of tensors or of numbers.
        """
        if self.phi in ("tanh", "sin"):
            return get(self.phi)
        if callable(self.phi):
            function = self.phi
        else:
            xp = array_api_compat.array_namespace(STEPS)
            function = getattr(xp, SMOOTH[one_of(self.phi, SMOOTH, "activation phi")][0])
        try:
            return get(function)
        except InputError as error:
            message = error.message.replace("activation:", "phi:", 1)
            raise InputError(message, error.code, argument="phi") from error
        except Exception as error:  # the user's function may raise anything
            raise InputError(
                f"phi: expected a function of arrays, got {self.phi!r}, which raised {error!r}",
                argument="phi",
            ) from error

    @cached_property
    def derivatives(self) -> tuple[float, float]:
        """Return phi''(0) and phi'''(0)."""
        if callable(self.phi):
            self.check_start()
            _, second, third = _derivatives(self.activation)
        else:
            _, second, third = SMOOTH[one_of(self.phi, SMOOTH, "activation phi")]
        if self.second is not None:
            second = real(self.second, "derivative of phi")
        if self.third is not None:
            third = real(self.third, "derivative of phi")
        return second, third

    def check_start(self) -> None:
        """Raise an InputError unless phi(0) = 0, phi'(0) = 1 and phi has no kink at 0."""
        if not callable(self.phi):
            return
        start = float(numpy(self.activation(np.zeros(1)))[0])
        slope = _derivatives(self.activation)[0]
        if not (abs(start) < 1e-9 and abs(slope - 1) < 1e-6):
            raise InputError(
                f"phi: expected phi(0) = 0 and phi'(0) = 1, got {start:.6g} and {slope:.6g}; "
                "pass lambda x: (phi(x) - phi(0)) / phi'(0)",
                argument="phi",
            )
        if any(abs(kink) < 1e-6 for kink in getattr(self.activation, "kinks", ())):
            raise InputError(
                f"phi: expected a function that is smooth at 0, got {self.phi!r}, which has a kink"
                " there",
                "no-shaped-form",
                argument="phi",
            )

    def scale(self, width: Count, p: Number = 0.5) -> float:
        """Return s = a n^p: S3 (2.6)."""
        return self.a * _rate(width, p)

    def function(self, xp: ModuleType) -> Callable[[Array], Array]:
        """Return phi for arrays of this namespace, through numpy if phi does not accept them."""
        if not callable(self.phi):
            return getattr(xp, SMOOTH[one_of(self.phi, SMOOTH, "activation phi")][0])
        trial = xp.asarray([0.0, 0.25])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                direct = type(self.phi(trial)) is type(trial)
        except Exception:  # the user's function may raise anything
            direct = False
        if direct:
            return self.phi
        return lambda x: like(numpy(self.activation(numpy(x).astype(float))), x)

    def at(self, width: Count, p: Number = 0.5) -> Callable[[Array], Array]:
        """Return phi_s of this width, an elementwise function of any array."""
        s = self.scale(width, p)
        functions: dict[ModuleType, Callable[[Array], Array]] = {}

        def phi_s(x: Array) -> Array:
            if not hasattr(x, "dtype"):
                x = np.asarray(x, dtype=float)
            xp = array_api_compat.array_namespace(x)
            if xp not in functions:
                functions[xp] = self.function(xp)
            return s * functions[xp](x / s)

        return phi_s

    def normalizer(self, width: Count, p: Number = 0.5) -> float:
        """Return c with c E phi_s(g)^2 = 1.

        E phi_s(g)^2 = s^2 E phi(x)^2, where x has the variance 1 / s^2.
        """
        s = self.scale(width, p)
        with np.errstate(all="ignore"):
            moment = s**2 * float(self.activation.second_moment(s**-2))
        if not (isfinite(moment) and moment > 0):
            raise InputError(
                f"a: expected a scale a n^p for which E phi_s(g)^2 is finite and above 0, got"
                f" {s:.3g}; use a larger a",
                argument="a",
            )
        return 1 / moment


def _rate(width: Count, p: Number) -> float:
    return count(width, "width", most=10**15) ** real(p, "p", least=0, most=0.5)


def _derivatives(phi: Activation) -> tuple[float, float, float]:
    """Return phi', phi'' and phi''' at 0 by central differences of eighth and sixth order.

    They have about twelve, ten and eight correct digits. Of many steps, the one is used whose
    result differs least from that of half the step.
    """
    with np.errstate(all="ignore"):
        y = numpy(phi((STEPS[:, None] * np.arange(-4, 5)).ravel())).reshape(-1, 9)
        odd = y[:, 5:] - y[:, 3::-1]
        even = y[:, 5:] + y[:, 3::-1] - 2 * y[:, 4:5]
        first = odd @ [4 / 5, -1 / 5, 4 / 105, -1 / 280] / STEPS
        second = even @ [8 / 5, -1 / 5, 8 / 315, -1 / 560] / STEPS**2
        third = odd @ [-61 / 30, 169 / 120, -3 / 10, 7 / 240] / STEPS**3
        rounding = np.finfo(float).eps * np.abs(y).max(axis=1)
    return (
        _most_stable(first, rounding / STEPS),
        _most_stable(second, rounding / STEPS**2),
        _most_stable(third, rounding / STEPS**3),
    )


def _most_stable(values: np.ndarray, rounding: np.ndarray) -> float:
    error = np.abs(np.diff(values)) + rounding[1:]
    return float(values[1:][np.argmin(np.where(np.isfinite(error), error, np.inf))])
