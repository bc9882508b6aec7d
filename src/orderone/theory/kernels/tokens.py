"""Layers for the tokens of an input: positions, extra tokens, the choice of one token.

    AddPositions   h'(a, t) = h(a, t) + e(t)        K'_(a,t)(b,s) = K_(a,t)(b,s) + P_ts
                   + m_(a,t) e_s + e_t m_(b,s), where m and e are means over neurons
    FirstTokens    k tokens before those of the input, the same for every input: P among them, and
                   0 with the others
    Token          h'(a) = h(a, t) for one t

P is the covariance of the entries of e: C delta_ts for a table with one row for each position, C
for a table whose row is the same for all of them, and e_t . e_s / n for numbers that are not
trained. Tables that are trained add the same P to Theta, in the parameterization of `Dense`.
S2 (1.41), (1.45) and footnote 4.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from array_api_compat import array_namespace

from orderone.core.arrays import as_numpy, like
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, Flag
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.kernels.pooling import check_tokens
from orderone.theory.kernels.validation import check_semidefinite, floating, square

Rows: TypeAlias = tuple[tuple[float, ...], ...]


def _covariance(value: ArrayLike) -> Rows:
    matrix = square(floating(value, "covariance")[1], "covariance")
    check_semidefinite(matrix, "covariance")
    return tuple(tuple(float(x) for x in row) for row in as_numpy(matrix))


def _means(value: ArrayLike | None, tokens: int) -> tuple[float, ...]:
    if value is None:
        return (0.0,) * tokens
    means = as_numpy(floating(value, "means")[1])
    if means.shape != (tokens,):
        raise InputError(
            f"means: expected one number for each of {tokens} tokens, got shape {means.shape}",
            argument="means",
        )
    return tuple(float(x) for x in means)


@dataclass(frozen=True, init=False)
class AddPositions(Layer):
    """Sum with numbers that depend on the position only; `covariance` is (tokens, tokens).

    `means` are those of numbers that are not trained, (tokens,). They are zero by default.
    """

    covariance: Rows
    trained: bool
    means: tuple[float, ...]

    def __init__(
        self, covariance: ArrayLike, trained: Flag = True, means: ArrayLike | None = None
    ) -> None:
        object.__setattr__(self, "covariance", _covariance(covariance))
        object.__setattr__(self, "means", _means(means, len(self.covariance)))
        if not isinstance(trained, bool | np.bool_):
            raise InputError(
                f"trained: expected True or False, got {type(trained).__name__}",
                "wrong-type",
                argument="trained",
            )
        object.__setattr__(self, "trained", bool(trained))

    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer."""
        check_tokens(kernel, self)
        P = np.array(self.covariance)
        tokens = kernel.tokens or 1
        if len(P) != tokens:
            raise InputError(
                f"covariance: expected a matrix for {tokens} tokens, got one for {len(P)}",
                argument="covariance",
            )
        xp = array_namespace(kernel.gap)
        points = kernel.gap.shape[0]
        copies = points // tokens
        added = np.tile(P, (copies, copies))
        K = as_numpy(kernel.nngp).reshape(points, points) + added
        theta = as_numpy(kernel.ntk).reshape(points, points)
        if self.trained:
            theta = theta + added
        mean = as_numpy(kernel.points.mean)
        means = np.tile(self.means, copies)
        K += np.outer(mean, means) + np.outer(means, mean)
        gaussian = kernel.points.gaussian and self.trained
        return from_matrices(
            like(K, kernel.gap, xp),
            like(theta, kernel.gap, xp),
            like(mean + means, kernel.points.mean, xp),
            gaussian,
            kernel.tokens,
            kernel.space,
        )


@dataclass(frozen=True, init=False)
class FirstTokens(Layer):
    """Tokens before those of the input, such as a class token; `covariance` is theirs."""

    covariance: Rows

    def __init__(self, covariance: ArrayLike) -> None:
        object.__setattr__(self, "covariance", _covariance(covariance))

    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer."""
        check_tokens(kernel, self)
        P = np.array(self.covariance)
        tokens = kernel.tokens or 1
        xp = array_namespace(kernel.gap)
        joined = []
        for matrix in (kernel.nngp, kernel.ntk):
            old = as_numpy(matrix)
            inputs = old.shape[0]
            longer = tokens + len(P)
            new = np.zeros((inputs, longer, inputs, longer))
            new[:, len(P) :, :, len(P) :] = old
            new[:, : len(P), :, : len(P)] = P[None, :, None, :]
            joined.append(like(new.reshape([inputs * longer] * 2), kernel.gap, xp))
        mean = as_numpy(kernel.points.mean).reshape(-1, tokens)
        mean = np.pad(mean, ((0, 0), (len(P), 0))).ravel()
        K, theta = joined
        return from_matrices(
            K,
            theta,
            like(mean, kernel.points.mean, xp),
            kernel.points.gaussian,
            tokens + len(P),
            (tokens + len(P),),
        )


@dataclass(frozen=True, init=False)
class Token(Layer):
    """One token of every input, by its position."""

    position: int

    def __init__(self, position: Count) -> None:
        object.__setattr__(self, "position", count(position, "position", least=0))

    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer."""
        check_tokens(kernel, self)
        tokens = kernel.tokens or 1
        if self.position >= tokens:
            raise InputError(
                f"position: expected a number below the {tokens} tokens, got {self.position}",
                argument="position",
            )
        xp = array_namespace(kernel.gap)
        K = kernel.nngp[:, self.position, :, self.position]
        theta = kernel.ntk[:, self.position, :, self.position]
        mean = xp.reshape(kernel.points.mean, (-1, tokens))[:, self.position]
        return from_matrices(K, theta, mean, kernel.points.gaussian)
