"""Shaped activations as modules.

    ShapedReLU         phi_s(x) = s_+ max(x, 0) + s_- min(x, 0)               S3 (2.5)
    ShapedActivation   phi_s(x) = s (phi(x / s) - phi(0)) / phi'(0)           S3 (2.6)

Both tend to the identity as the network grows. (2.6) requires phi(0) = 0 and phi'(0) = 1; the form
above has both for any phi with phi'(0) != 0, GELU and SiLU included. `TransformedActivation` is the
form of DKS and TAT (`theory.kernel_shaping`).

    gain = 1 / sqrt(E phi_s(g)^2)

With weights of standard deviation gain / sqrt(fan_in), layers preserve the size of the signal.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from math import hypot, isfinite, sqrt

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.inputs import Number
from orderone.core.reals import real
from orderone.nn.inputs import Phi
from orderone.theory.activations import get

NEAR = 1e-12  # distance from 0 within which a bend is a kink


class ShapedReLU(nn.Module):
    """Shaped ReLU with the slope `plus` for x > 0 and `minus` for x < 0.

    (1, 0) is the ReLU. `ShapedReLU.at(width)` computes the slopes.
    """

    plus: float
    minus: float

    def __init__(self, plus: Number = 1.0, minus: Number = 0.0):
        super().__init__()
        self.plus = real(plus, "plus")
        self.minus = real(minus, "minus")

    @classmethod
    def at(
        cls, size: Number, c_plus: Number = 0.0, c_minus: Number = -1.0, p: Number = 0.5
    ) -> "ShapedReLU":
        """Return the activation with slopes 1 + c / size^p, 0 <= p <= 1/2.

        The size is the width n of (2.5), or with p = 1/2 the depth n^{2p}.
        """
        shrink = real(size, "size", above=0) ** real(p, "p", least=0, most=0.5)
        return cls(1 + real(c_plus, "c_plus") / shrink, 1 + real(c_minus, "c_minus") / shrink)

    @property
    def gain(self) -> float:
        """Return sqrt(2 / (plus^2 + minus^2))."""
        size = hypot(self.plus, self.minus)
        if size == 0:
            raise InputError(
                "plus, minus: expected a slope other than 0, got plus = minus = 0; then no weights"
                " preserve the size of the signal",
                argument="plus",
            )
        return sqrt(2) / size

    def forward(self, x: Tensor) -> Tensor:
        # Do not multiply by a slope of 0: infinity times 0 is NaN.
        if self.minus == 0:
            return self.plus * x.relu()
        if self.plus == 0:
            return -self.minus * (-x).relu()
        return torch.where(x > 0, self.plus * x, self.minus * x)

    def extra_repr(self) -> str:
        return f"plus={self.plus:g}, minus={self.minus:g}"


class ShapedActivation(nn.Module):
    """Shaped form of `phi`, any elementwise function or module that is smooth at 0.

    `scale` is s = a n^p.
    """

    phi: Phi
    scale: float
    start: float  # phi(0)
    slope: float  # phi'(0)

    def __init__(self, phi: Phi, scale: Number):
        super().__init__()
        if not callable(phi):
            raise InputError(
                f"phi: expected a function or module of tensors, got {phi!r}; pass torch.tanh",
                argument="phi",
            )
        self.phi = phi
        self.scale = real(scale, "scale")
        if self.scale == 0:
            raise InputError("scale: expected a number other than 0, got 0", argument="scale")
        if is_bent(phi):
            raise InputError(
                f"phi: expected a function that is smooth at 0, got {phi!r}, which has a kink"
                " there; use ShapedReLU instead",
                "no-shaped-form",
                argument="phi",
            )
        self.start, self.slope = _start(phi)

    @property
    def gain(self) -> float:
        """Compute 1 / sqrt(E phi_s(g)^2) by quadrature, piece by piece between the kinks of phi_s.

        See `theory.activations`.
        """
        moment = 0.0
        if 1e-100 <= abs(self.scale) <= 1e100:
            with torch.no_grad():
                moment = self.scale**2 * float(get(self._of_array).second_moment(self.scale**-2))
        if not (isfinite(moment) and moment > 0):
            raise InputError(
                "scale: expected a scale for which E phi_s(g)^2 is finite and above 0, got"
                f" {self.scale:g}",
                argument="scale",
            )
        return moment**-0.5

    def forward(self, x: Tensor) -> Tensor:
        return self._unscaled(x / self.scale) * self.scale

    def _unscaled(self, x: Tensor) -> Tensor:
        return (self.phi(x) - self.start) / self.slope

    def _of_array(self, x: ArrayLike) -> np.ndarray:
        return self._unscaled(torch.as_tensor(x)).numpy()

    def extra_repr(self) -> str:
        if isinstance(self.phi, nn.Module):
            return f"scale={self.scale:g}"
        name = getattr(self.phi, "__name__", self.phi)
        return f"phi={name}, scale={self.scale:g}"


class TransformedActivation(nn.Module):
    """Activation gamma (phi(alpha x + beta) + delta), as DKS and TAT choose it.

    E of its square is 1 for standard normal inputs, so weights have the variance 1 / fan_in.
    """

    phi: Phi
    alpha: float
    beta: float
    gamma: float
    delta: float
    gain: float = 1.0

    def __init__(self, phi: Phi, alpha: Number, beta: Number, gamma: Number, delta: Number):
        super().__init__()
        self.phi = phi
        self.alpha = real(alpha, "alpha")
        self.beta = real(beta, "beta")
        self.gamma = real(gamma, "gamma")
        self.delta = real(delta, "delta")

    def forward(self, x: Tensor) -> Tensor:
        return self.gamma * (self.phi(self.alpha * x + self.beta) + self.delta)

    def extra_repr(self) -> str:
        return (
            f"alpha={self.alpha:.4g}, beta={self.beta:.4g}, gamma={self.gamma:.4g},"
            f" delta={self.delta:.4g}"
        )


def derivatives(phi: Phi, x: np.ndarray, order: int) -> list[np.ndarray]:
    """Return phi and its first `order` derivatives at the points x."""
    with torch.enable_grad():
        at = torch.as_tensor(x, dtype=torch.float64).requires_grad_()
        value = phi(at.clone())  # a copy: some functions work in place
        values = [value]
        for left in range(order, 0, -1):
            slope = None
            if value.requires_grad:
                (slope,) = torch.autograd.grad(
                    value.sum(), at, create_graph=left > 1, allow_unused=True
                )
            if slope is None:
                value = torch.zeros_like(at)
            else:
                value = slope
            values.append(value)
    return [each.detach().numpy() for each in values]


def is_bent(phi: Phi) -> bool:
    """Return whether phi has a kink at 0: another slope on its left than on its right."""
    left, right = _slopes(phi, [-NEAR, NEAR])[1]
    return bool(abs(right - left) > 1e-3 * max(abs(left), abs(right)) + 1e-9)


def _start(phi: Phi) -> tuple[float, float]:
    """Return phi(0) and phi'(0)."""
    (start,), (slope,) = _slopes(phi, [0.0])
    if not (isfinite(slope) and slope != 0):
        raise InputError(
            f"phi: expected a function whose slope at 0 is finite and not 0, got the slope {slope}",
            "no-shaped-form",
            argument="phi",
        )
    return start, slope


def _slopes(phi: Phi, at: list[float]) -> tuple[list[float], list[float]]:
    """Return phi and phi' at these points."""
    with torch.enable_grad():
        x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        y = phi(x.clone())  # a copy: some functions work in place
        if y.requires_grad:
            (slope,) = torch.autograd.grad(y.sum(), x)
        else:
            slope = torch.zeros(len(at))
    return y.detach().tolist(), slope.tolist()
