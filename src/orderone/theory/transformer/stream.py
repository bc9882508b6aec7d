"""The value that flows through the blocks of a Transformer: the residual stream's kernel and its
tangent kernels.

    G_(a,t)(b,t')       = E[z_i(a,t) z_i(b,t')]                              S2 (1.35)
    Theta_(a,t)(b,t')   = sum over groups of lambda_G |dz_i/dtheta_G|^2      S2 (1.98), (1.117)

Tangent kernels are kept apart by group of parameters, because the recursion is linear in them. They
are those of learning rates Lambda_G = 1: every block adds what a group contributes once, and
carries on what came before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from orderone.theory.transformer.tokens import Tokens

ALL = "all groups"


@dataclass(frozen=True, eq=False)
class Stream:
    """A kernel, the tangent kernel of each group, and what the rows mean."""

    G: np.ndarray  # (points, points)
    theta: Mapping[str, np.ndarray]  # group -> (points, points)
    tokens: Tokens

    def normalized(self, eps: float) -> "Stream":
        """Return the stream behind a layer norm.

        Both kernels are divided by sqrt(G_11 + eps) sqrt(G_22 + eps).

        S2 (1.53), (1.139); erratum S2.1: eps is inside the root. The stream has mean 0, so RMSNorm
        does the same.
        """
        square = self.G.diagonal() + eps
        if not (square > 0).all():
            raise ValueError(
                "layer norm: expected tokens with some variance, got one whose kernel is 0, so that"
                " the result is 0 / 0; give eps=1e-5, as PyTorch does, or C['PE'] above 0"
            )
        scale = 1 / np.sqrt(square)
        factor = scale[:, None] * scale[None, :]
        theta = {group: part * factor for group, part in self.theta.items()}
        return Stream(self.G * factor, theta, self.tokens)

    def plus(
        self, G: np.ndarray, carried: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]
    ) -> "Stream":
        """Return the skip connection: the stream itself, what a branch made of it, and what the
        branch's weights add."""
        theta = dict(self.theta)
        for part in (carried, own):
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
