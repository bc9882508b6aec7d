"""Residual stream of a Transformer: its kernel and its tangent kernels.

    G_(a,t)(b,t')       = E[z_i(a,t) z_i(b,t')]                              S2 (1.35)
    Theta_(a,t)(b,t')   = sum over groups of lambda_G |dz_i/dtheta_G|^2      S2 (1.98), (1.117)

Each group of parameters has a separate tangent kernel, because the recursion is linear in them.
Every block propagates the kernels before it and adds the direct contributions of its weights.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from orderone.core.errors import InputError
from orderone.theory.transformer.tokens import Tokens

ALL = "all groups"


@dataclass(frozen=True, eq=False)
class Stream:
    """Kernel, the tangent kernel of each group, and the tokens of the rows."""

    G: np.ndarray  # (points, points)
    theta: Mapping[str, np.ndarray]  # group -> (points, points)
    tokens: Tokens

    def normalized(self, eps: float, gain: float = 1.0) -> "Stream":
        """Return the stream after a layer norm.

        Both kernels are divided by sqrt(G_11 + eps) sqrt(G_22 + eps), and multiplied by the square
        of the `gain`, the root mean square of gamma in S2 (1.10).

        S2 (1.53), (1.139); erratum S2.1: eps is inside the root. The stream has mean 0, so RMSNorm
        does the same.
        """
        square = self.G.diagonal() + eps
        if not (square > 0).all():
            raise InputError(
                "layer norm: expected tokens with a variance above 0, got one with the variance 0,"
                " which would give 0 / 0; pass eps=1e-5, as PyTorch does, or C['PE'] above 0",
                "zero-variance",
                argument="G0",
            )
        scale = gain / np.sqrt(square)
        factor = scale[:, None] * scale[None, :]
        theta = {group: part * factor for group, part in self.theta.items()}
        return Stream(self.G * factor, theta, self.tokens)

    def times(self, gain: float) -> "Stream":
        """Return the stream multiplied by a number, as by the gain of a skip path, S2 (1.5)."""
        if gain == 1:
            return self
        theta = {group: gain**2 * part for group, part in self.theta.items()}
        return Stream(gain**2 * self.G, theta, self.tokens)

    def plus(
        self, G: np.ndarray, propagated: Mapping[str, np.ndarray], direct: Mapping[str, np.ndarray]
    ) -> "Stream":
        """Return the sum of the stream and the propagated and direct kernels of a branch."""
        check_variance(G)
        theta = dict(self.theta)
        for part in (propagated, direct):
            for group, kernel in part.items():
                if group in theta:
                    kernel = theta[group] + kernel
                theta[group] = kernel
        return Stream(self.G + G, theta, self.tokens)

    def total(self) -> np.ndarray:
        """Return the tangent kernel of all groups."""
        return sum(self.theta.values(), np.zeros_like(self.G))

    def merged(self) -> "Stream":
        """Return the stream with one tangent kernel for all groups."""
        theta = {ALL: self.total()} if self.theta else {}
        return Stream(self.G, theta, self.tokens)


def check_variance(G: np.ndarray) -> None:
    """Raise an InputError if the kernel of a branch is infinite: no norm could divide by it."""
    if not np.isfinite(G).all():
        raise InputError(
            "activation: expected finite kernels after every block, got an infinite one, since the"
            " square of the activation has no mean or a constant is too large; choose another"
            " activation, or smaller C",
            "infinite-kernel",
            argument="activation",
        )


def check_tangents(streams: Iterable[Stream]) -> None:
    """Raise an InputError if a tangent kernel is infinite: attention could not average it."""
    for stream in streams:
        for kernel in stream.theta.values():
            if not np.isfinite(kernel).all():
                raise InputError(
                    "activation: expected finite tangent kernels before attention, got an infinite"
                    " one, as of an activation with a jump; choose another activation, or call"
                    " kernels(...), which needs no tangent kernels",
                    "infinite-kernel",
                    argument="activation",
                )
