"""Value that layers take and return: both kernels of a wide network, for all pairs of points.

    NNGP    K_ab     = E[h_i(a) h_i(b)]                = sqrt(q_a q_b) (1 - gap_ab)
    NTK     Theta_ab = sum_w dh_i(a)/dw dh_i(b)/dw     = sqrt(q_a q_b) tangent_ab
            q_a      = K_aa

h_i is one neuron, and the expectation is over weights (and dropout masks). A point is an input, or
one token of an input; points are ordered input by input. Instead of the two matrices, a kernel
stores:

    gap      1 - correlation. Kernels of activations with a kink behave as sqrt(gap), so a
             correlation rounded to 1 - 6e-8 would lose half of the digits of single precision; a
             gap loses none.
    tangent  Theta divided by the scale of K. Layers that only rescale do not change it, and depth
             alone does not make it overflow.
    points   the diagonals, in double precision for any precision of the rest. They are not read
             from the matrices: with dropout, the diagonal has one mask and any other pair has two,
             even if its inputs are equal.
"""

from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace, device

from orderone.core.inputs import Array


@dataclass(frozen=True, eq=False)
class Points:
    """Numbers of the single points."""

    variance: Array  # (points,) float64, q_a = K_aa
    ntk: Array  # (points,) float64, Theta_aa
    mean: Array  # (points,) float64, mean over neurons: 0 after a Dense layer
    gaussian: bool  # whether neurons are Gaussian, as activations require


@dataclass(frozen=True, eq=False)
class Kernel:
    """Both kernels; `inputs` and `covariance` make one, and each layer computes the next."""

    points: Points
    gap: Array  # (points, points), 1 - correlation, in [0, 2]; 0 on the diagonal
    tangent: Array  # (points, points), Theta_ab / sqrt(q_a q_b)
    tokens: int | None = None  # tokens of an input; None if inputs are points
    space: tuple[int, ...] = ()  # height and width of images, whose pixels are the tokens

    @property
    def nngp(self) -> Array:
        """Return K, (inputs, inputs) or (inputs, tokens, inputs, tokens)."""
        return self._shaped(self._scaled(1 - self.gap, self.points.variance))

    @property
    def ntk(self) -> Array:
        """Return Theta, (inputs, inputs) or (inputs, tokens, inputs, tokens)."""
        return self._shaped(self._scaled(self.tangent, self.points.ntk))

    @property
    def correlation(self) -> Array:
        """Return correlations, (inputs, inputs) or (inputs, tokens, inputs, tokens)."""
        return self._shaped(1 - self.gap)

    @property
    def variance(self) -> Array:
        """Return the diagonal of K, (inputs,) or (inputs, tokens), in double precision."""
        q = self.points.variance
        if self.tokens is None:
            return q
        return array_namespace(q).reshape(q, (-1, self.tokens))

    def astype(self, dtype: object) -> "Kernel":
        """Return the kernel with pairs in another precision; points stay in double precision."""
        xp = array_namespace(self.gap)
        return replace(self, gap=xp.astype(self.gap, dtype), tangent=xp.astype(self.tangent, dtype))

    def __repr__(self) -> str:
        points = self.gap.shape[0]
        if self.tokens is None:
            tokens = ""
        else:
            tokens = f" of {self.tokens} tokens"
        inputs = points // (self.tokens or 1)
        return f"Kernel({inputs} inputs{tokens}, {self.gap.dtype})"

    def _scaled(self, values: Array, diagonal: Array) -> Array:
        """Return sqrt(q_a q_b) values_ab, with `diagonal` on the diagonal."""
        xp = array_namespace(values)
        size = xp.astype(xp.sqrt(self.points.variance), values.dtype)
        with np.errstate(all="ignore"):
            scaled = size[:, None] * size[None, :]
            if not bool(xp.isfinite(xp.max(scaled))):
                scaled[(values == 0) | xp.isnan(scaled)] = 0  # zero times infinity is zero
            scaled *= values
            return pinned(scaled, diagonal)

    def _shaped(self, matrix: Array) -> Array:
        if self.tokens is None:
            return matrix
        inputs = matrix.shape[0] // self.tokens
        return array_namespace(matrix).reshape(matrix, (inputs, self.tokens, inputs, self.tokens))


def pinned(matrix: Array, diagonal: Array) -> Array:
    """Write `diagonal` into `matrix`, and return it."""
    xp = array_namespace(matrix)
    each = xp.arange(matrix.shape[0], device=device(matrix))
    matrix[each, each] = xp.astype(diagonal, matrix.dtype)
    return matrix
