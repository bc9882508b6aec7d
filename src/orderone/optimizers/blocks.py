"""Preconditioners in blocks, and sides without one: factors of the shape for SOAP and Shampoo.

A side of d entries that is cut into blocks of size s has b = ceil(d / s) of them, and the spectral
norm of a step grows by b^E (`theory.exponents.matrix_laws`): E = 1/2 for SOAP, and E with
|dW| = |G|^(1 - 2 E) for Shampoo. SOAP leaves sides alone that are longer than some limit. Such a
side contributes d^(1/2).

An optimizer that preconditions one side may cut the other side as well. For Shampoo this counts,
since every block is divided by the norm of its own gradient. For SOAP it does not: all d entries of
the side are of one size, in whichever block they are.

These are factors of single shapes, so that a plan can take them into account exactly: a base may
have one block, where the target has many.
"""

from dataclasses import dataclass
from math import ceil, sqrt
from typing import TypeAlias

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.optimizers.record import Shape, TensorScale
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.matrix_laws import soap

Cuts: TypeAlias = tuple[int | None, int | None]
# one size for the sides that are preconditioned, or the sizes for rows and columns
BlockSize: TypeAlias = Count | tuple[Count | None, Count | None]
UNCUT: Cuts = (None, None)
ONE_SIDED_SOAP = (soap("in"), soap("out"))


@dataclass(frozen=True)
class BlockFactor:
    """Factor of the spectral norm of a step, as a function of the shape."""

    power: float  # E
    cuts: Cuts  # sizes of the blocks of rows and of columns
    counted: tuple[bool, bool]  # whether the blocks of rows and of columns change the norm
    max_dim: int | None

    def __call__(self, shape: Shape) -> float:
        factor = 1.0
        for size, cut, counts in zip(shape[-2:], self.cuts, self.counted, strict=True):
            if self.max_dim is not None and size > self.max_dim:
                factor *= size**0.5
            elif cut is not None and counts:
                factor *= ceil(size / cut) ** self.power
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

    cuts: Cuts

    def __call__(self, eps: float, scale: TensorScale) -> float:
        square = scale.gradient**2
        for size, base in zip(scale.shape, scale.base_shape, strict=True):
            square *= size / base
        sides = zip(scale.shape[-2:], scale.base_shape[-2:], self.cuts, strict=False)
        for size, base, cut in sides:
            if cut is not None:
                square *= ceil(base / cut) / ceil(size / cut)
        return eps * square


def _growth(scale: TensorScale) -> tuple[float, float]:
    """Return the ratios of rows and columns, target over base."""
    rows = scale.shape[-2] / scale.base_shape[-2]
    return rows, scale.shape[-1] / scale.base_shape[-1]


def block_factor(
    law: object, exact_law: UpdateLaw, block_size: BlockSize | None, max_dim: int | None
) -> BlockFactor:
    """Return the factor of an optimizer with this law, or raise an InputError."""
    if not exact_law.spectral:
        if block_size is not None:
            name = "block_size"
        else:
            name = "max_dim"
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
    preconditioned = _preconditioned(law, exact_law)
    cuts = _cuts(block_size, preconditioned)
    if max_dim is not None:
        max_dim = count(max_dim, "max_dim")
    if exact_law in ONE_SIDED_SOAP:
        counted = preconditioned
    else:
        counted = (True, True)
    return BlockFactor(float(1 - exact_law.gradient) / 2, cuts, counted, max_dim)


def _preconditioned(law: object, exact_law: UpdateLaw) -> tuple[bool, bool]:
    """Return whether rows and columns are preconditioned, as far as the law says so."""
    if isinstance(law, str):
        return not law.endswith("-in"), not law.endswith("-out")
    if exact_law in ONE_SIDED_SOAP:
        return not exact_law.fan_out, not exact_law.fan_in
    return True, True


def _cuts(block_size: BlockSize | None, preconditioned: tuple[bool, bool]) -> Cuts:
    """Return the sizes of blocks of rows and columns; one size is for preconditioned sides."""
    if block_size is None:
        return UNCUT
    if isinstance(block_size, tuple):
        if len(block_size) != 2:
            raise InputError(
                "block_size: expected one size, or two for rows and columns (None: not cut); got"
                f" {block_size!r}",
                argument="block_size",
            )
        rows, columns = block_size
        return _size(rows), _size(columns)
    size = count(block_size, "block_size")
    rows, columns = preconditioned
    return size if rows else None, size if columns else None


def _size(size: int | None) -> int | None:
    if size is None:
        return None
    return count(size, "block_size")
