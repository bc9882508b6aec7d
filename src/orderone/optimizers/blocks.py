"""Preconditioners in blocks, and sides without one: factors of the shape for SOAP and Shampoo.

A side of d entries that is cut into blocks of size s has b = ceil(d / s) of them, and the spectral
norm of a step grows by b^E (`theory.exponents.matrix_laws`): E = 1/2 for SOAP, and E with
|dW| = |G|^(1 - 2 E) for Shampoo. SOAP leaves sides alone that are longer than some limit. Such a
side contributes d^(1/2).

These are factors of single shapes, so that a plan can take them into account exactly: a base may
have one block, where the target has many.
"""

from dataclasses import dataclass
from math import ceil, sqrt

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.optimizers.record import Shape, TensorScale
from orderone.theory.exponents.laws import UpdateLaw


@dataclass(frozen=True)
class BlockFactor:
    """Factor of the spectral norm of a step, as a function of the shape."""

    power: float  # E
    block_size: int | None
    max_dim: int | None

    def __call__(self, shape: Shape) -> float:
        factor = 1.0
        for size in shape[-2:]:
            if self.max_dim is not None and size > self.max_dim:
                factor *= size**0.5
            elif self.block_size is not None:
                factor *= ceil(size / self.block_size) ** self.power
        return factor


@dataclass(frozen=True)
class SpectralEps:
    """Scale of an eps beside a gradient that is normalized in its own directions.

    There, entries are the norm of the gradient divided by that of a normalized step: the norm of
    the gradient for Muon, its entries for Adam, and what lies between for SOAP. The code of Qiu et
    al. 2025 has the same powers.
    """

    law: UpdateLaw
    blocks: BlockFactor | None

    def __call__(self, eps: float, scale: TensorScale) -> float:
        if len(scale.shape) < 2:
            return eps * scale.gradient
        rows, columns = _growth(scale)
        step = rows ** float(self.law.fan_out) * columns ** float(self.law.fan_in)
        if self.blocks is not None:
            step *= self.blocks(scale.shape) / self.blocks(scale.base_shape)
        return eps * scale.gradient * sqrt(rows * columns) / step


@dataclass(frozen=True)
class MatrixEps:
    """Scale of an eps beside products of gradients G G^T, as in Shampoo: squares of norms.

    The norm is that of a gradient of low rank in one block: its entries times the root of their
    number.
    """

    block_size: int | None

    def __call__(self, eps: float, scale: TensorScale) -> float:
        square = scale.gradient**2
        for size, base in zip(scale.shape, scale.base_shape, strict=True):
            square *= size / base
            if self.block_size is not None:
                square *= ceil(base / self.block_size) / ceil(size / self.block_size)
        return eps * square


def _growth(scale: TensorScale) -> tuple[float, float]:
    """Return the ratios of rows and columns, target over base."""
    rows = scale.shape[-2] / scale.base_shape[-2]
    return rows, scale.shape[-1] / scale.base_shape[-1]


def block_factor(
    law: object, exact_law: UpdateLaw, block_size: int | None, max_dim: int | None
) -> BlockFactor:
    """Return the factor of an optimizer with this law, or raise an InputError."""
    if not exact_law.spectral:
        name = "block_size" if block_size is not None else "max_dim"
        raise InputError(
            f"{name}: only matrices of a spectral law have preconditioners, such as law='soap' or"
            f" law='shampoo'; got {law!r}",
            argument=name,
        )
    if max_dim is not None and law != "soap":
        raise InputError(
            "max_dim: only SOAP has the same law of the gradient with one preconditioner and with"
            " two; for Shampoo, register the law of the sides that it preconditions, such as"
            " law='shampoo-in'",
            argument="max_dim",
        )
    if block_size is not None:
        block_size = count(block_size, "block_size")
    if max_dim is not None:
        max_dim = count(max_dim, "max_dim")
    return BlockFactor(float(1 - exact_law.gradient) / 2, block_size, max_dim)
