"""One layer of many random networks at once, without their weights.

Given the layers below, the pre-activations of a layer are n independent Gaussian vectors over the m
inputs,

    z_i ~ N(0, V),   i = 1 ... n                                     S3 (2.2)
    V' = (c/n) sum_i phi(z_i) phi(z_i)^T                             S3 (3.4)-(3.5)

so a layer costs m n normal numbers and no n x n matrix, and V' has exactly the distribution that it
has with weights. Rows of inputs are (m, samples, n) in single precision; covariances are stored as
lower factors L, V = L L^T, (m, m, samples) in double precision. The factor of the next layer comes
from Gram-Schmidt on phi(z) and not from sums of products: so 1 - rho, which becomes very small deep
in a network, stays precise down to 1e-13.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from orderone.torch_compat import standard_gamma

MOST_LOOPED = 8  # inputs; with more, a batched product is faster than a loop over pairs


class Draw:
    """Normal numbers for `width` neurons of every network, from a separate generator."""

    def __init__(self, width: int, dtype: torch.dtype, seed: int, device: torch.device):
        self._width = width
        self._dtype = dtype
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def empty(self, L: Tensor) -> Tensor:
        return torch.empty(L.shape[0], L.shape[2], self._width, dtype=self._dtype, device=L.device)

    def __call__(self, buffer: Tensor) -> Tensor:
        return buffer.normal_(generator=self._generator)

    def bartlett(self, half: Tensor) -> Tensor:
        """Return Bartlett's triangular matrices (m, m, samples).

        `half` is half the degrees of freedom of each column.
        """
        m, samples = half.shape
        normal = self(torch.empty(m, m, samples, dtype=half.dtype, device=half.device))
        # the public torch.distributions.Chi2 does not accept a generator
        gamma = standard_gamma(half.clamp(min=0.5), generator=self._generator)
        root = (2 * gamma).sqrt()
        T = normal.permute(2, 0, 1).tril(-1) + torch.diag_embed(root.T)
        return (T * (half.T > 0)[:, None, :]).permute(1, 2, 0)


class Homogeneous:
    """Layers with phi(x) = major max(x, 0) + minor min(x, 0).

    phi is homogeneous, so norms are handled separately.
    """

    def __init__(self, L: Tensor, slopes: tuple[float, float], width: int, draw: Draw):
        # z -> -z exchanges the two slopes, and V keeps its distribution
        major, minor = sorted(slopes, key=abs, reverse=True)
        self._slope = minor / major
        self._scale = (2 / (1 + (minor / major) ** 2) / width) ** 0.5
        self._L = L
        self._draw = draw
        self._buffer = draw.empty(L)

    def step(self) -> None:
        unit, norm = rows(self._L)
        z = correlated(self._draw(self._buffer), unit, first=True)
        if self._slope:
            x = torch.nn.functional.leaky_relu_(z, self._slope)
        else:
            x = z.relu_()
        self._L = gram_schmidt(x).mul_((norm * self._scale)[:, None])

    def factor(self) -> Tensor:
        return self._L


class Smooth:
    """Layers with any function phi(x); c is its normalizer."""

    def __init__(
        self, L: Tensor, phi: Callable[[Tensor], Tensor], c: float, width: int, draw: Draw
    ):
        self._L = L
        self._phi = phi
        self._scale = (c / width) ** 0.5
        self._draw = draw
        self._buffer = draw.empty(L)

    def step(self) -> None:
        x = self._phi(correlated(self._draw(self._buffer), self._L))
        self._L = gram_schmidt(x) * self._scale

    def factor(self) -> Tensor:
        return self._L


class Linear:
    """Layers with phi(x) = x: V' is Wishart, and its factor is L times Bartlett's matrix.

    This takes m^2 numbers in a layer, for any n.
    """

    def __init__(self, L: Tensor, width: int, draw: Draw):
        self._L = L
        self._width = width
        self._draw = draw
        freedom = torch.arange(width, width - len(L), -1, dtype=L.dtype, device=L.device)
        self._half = (freedom.clamp(min=0) / 2)[:, None].expand(len(L), L.shape[2]).contiguous()

    def step(self) -> None:
        """Multiply by Bartlett's matrix.

        It has normal numbers below the diagonal and roots of chi-square numbers on it; with n < m
        the last columns are zero.
        """
        T = self._draw.bartlett(self._half)
        self._L = torch.einsum("ikp,kjp->ijp", self._L, T) * self._width**-0.5

    def factor(self) -> Tensor:
        return self._L


class Residual:
    """Layers z' = z + W relu(z) / sqrt(d n): S3 (2.12).

    The state is z itself; V is its covariance (erratum S3.10).
    """

    def __init__(self, L: Tensor, width: int, depth: int, draw: Draw):
        unit, norm = rows(L)  # relu is homogeneous
        self._draw = draw
        self._scale = (depth * width) ** -0.5
        self._norm = norm * width**-0.5
        self._z = correlated(draw(draw.empty(L)), unit)
        self._buffer = draw.empty(L)

    def step(self) -> None:
        R = gram_schmidt(self._z.relu()) * self._scale
        self._z += correlated(self._draw(self._buffer), R)

    def factor(self) -> Tensor:
        return gram_schmidt(self._z.clone()) * self._norm[:, None]


# a chunk of networks at some layer
Layers: TypeAlias = Homogeneous | Smooth | Linear | Residual


def rows(L: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows divided by their norms, and the norms (m, samples)."""
    norm = L.square().sum(1).sqrt()  # vector_norm is slow along this axis
    return L / torch.where(norm > 0, norm, 1)[:, None], norm


def correlated(g: Tensor, L: Tensor, first: bool = False) -> Tensor:
    """Return z_i = sum_j L_ij g_j for every neuron; may overwrite g.

    `first` says that the first row of L is 1, 0, ..., 0.
    """
    if len(g) > MOST_LOOPED:
        return torch.einsum("ijs,jsn->isn", L.to(g.dtype), g)
    L = L.to(g.dtype)[..., None]
    for i in reversed(range(len(g))):
        if i or not first:
            g[i] *= L[i, i]
        for j in range(i):
            g[i].addcmul_(g[j], L[i, j])
    return g


def gram_schmidt(x: Tensor) -> Tensor:
    """Return lower triangular R with x x^T = R R^T, (m, m, samples), in double precision.

    Overwrites x.
    """
    m, samples = x.shape[:2]
    R = torch.zeros(m, m, samples, dtype=torch.float64, device=x.device)
    rounding = 8 * torch.finfo(x.dtype).eps
    for j in range(m):
        norm = torch.linalg.vector_norm(x[j], dim=-1)
        if j:  # the rest of an input in the span of the others is rounding error
            whole = R[j, :j].square().sum(0).sqrt()
            norm = torch.where(norm > rounding * whole, norm, 0)
        R[j, j] = norm
        if j < m - 1:
            divisor = torch.where(norm > 0, norm, torch.inf)
            dots = torch.linalg.vecdot(x[j + 1 :], x[j]) / divisor
            R[j + 1 :, j] = dots
            x[j + 1 :].addcmul_((dots / divisor)[..., None], x[j], value=-1)
    return R
