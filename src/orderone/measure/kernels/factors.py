"""Jacobians with respect to one parameter, as products of factors, and their inner products.

    J[a, o] = sum_t R[a, o, t] C[a, o, t]^T             a: example, o: output, t: token or position
    Theta[a, o, b, p] = <J[a, o], J[b, p]>

    explicit     compute J, (examples, outputs, rows * columns), and multiply matrices
    factored     Theta = sum_ts (R[a, o, t] . R[b, p, s]) (C[a, o, t] . C[b, p, s])

The second form needs no J. It is cheaper if there are few t, and for large tables. `contract`
counts the floating-point operations of both, and takes the cheaper one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

BLOCK = 2**22  # numbers in a block of products of factors
WEIGHT_OF_A_SUM = 8  # cost of a number that is read from memory, in multiplications


@dataclass(frozen=True, eq=False)
class Factor:
    """Vectors: (examples, outputs or 1, t, size)."""

    vectors: Tensor

    @property
    def size(self) -> int:
        return self.vectors.shape[-1]

    @property
    def terms(self) -> int:
        return self.vectors.shape[2]

    def output(self, which: int) -> "Factor":
        """Return the vectors of one output."""
        if self.vectors.shape[1] == 1:
            return self
        return Factor(self.vectors[:, which : which + 1])


@dataclass(frozen=True, eq=False)
class Indices:
    """One-hot vectors of length `size`, given by their indices: (examples, 1, t)."""

    indices: Tensor
    size: int

    @property
    def terms(self) -> int:
        return self.indices.shape[2]


@dataclass(frozen=True, eq=False)
class Jacobian:
    """Jacobian of one use: sum over t of rows times columns."""

    rows: Factor | Indices
    columns: Factor

    @classmethod
    def explicit(cls, values: Tensor, shape: Sequence[int]) -> "Jacobian":
        """Return the Jacobian that is `values`, (examples, outputs, ...)."""
        flat = values.reshape(*values.shape[:2], 1, prod(shape))
        return cls(Factor(flat.new_ones(1, 1, 1, 1).expand(flat.shape[0], 1, 1, 1)), Factor(flat))

    @property
    def is_explicit(self) -> bool:
        return self.rows.terms == 1 and self.rows.size == 1

    @property
    def examples(self) -> int:
        return self.columns.vectors.shape[0]

    @property
    def outputs(self) -> int:
        return max(_outputs(self.rows), _outputs(self.columns))

    def output(self, which: int) -> "Jacobian":
        """Return the Jacobian of one output."""
        rows = self.rows
        if isinstance(rows, Factor):
            rows = rows.output(which)
        return Jacobian(rows, self.columns.output(which))

    def values(self) -> Tensor:
        """Return J, (examples, outputs, rows * columns)."""
        columns = self.columns.vectors
        if self.is_explicit:
            return columns.flatten(2)
        if isinstance(self.rows, Indices):
            examples, outputs = columns.shape[:2]
            full = columns.new_zeros(examples, outputs, self.rows.size, columns.shape[-1])
            index = self.rows.indices.unsqueeze(-1).expand_as(columns)
            return full.scatter_add_(2, index, columns).flatten(2)
        return _outer(self.rows.vectors, columns)


def over_outputs(parts: Sequence[Jacobian]) -> Jacobian:
    """Return one Jacobian of several outputs, from one for each."""
    first = parts[0]
    if len(parts) == 1:
        return first
    columns = _joined([part.columns for part in parts])
    if first.is_explicit or isinstance(first.rows, Indices):
        return Jacobian(first.rows, columns)
    return Jacobian(
        _joined([part.rows for part in parts if isinstance(part.rows, Factor)]), columns
    )


def _joined(factors: Sequence[Factor]) -> Factor:
    """Return vectors of all outputs, or the same ones if they depend on none."""
    vectors = [factor.vectors for factor in factors]
    if all(x.data_ptr() == vectors[0].data_ptr() for x in vectors):
        return factors[0]
    return Factor(torch.cat(vectors, 1))


def _outer(rows: Tensor, columns: Tensor) -> Tensor:
    """Return sum_t rows[t] columns[t]^T, (examples, outputs, rows * columns), as one product.

    Outputs of one factor are more rows, or more columns, of a matrix: no factor is repeated.
    """
    examples = rows.shape[0]
    if columns.shape[1] == 1:
        tall = rows.mT.flatten(1, 2)  # (examples, outputs * m, t)
        product = tall @ columns[:, 0]
        return product.reshape(examples, rows.shape[1], -1)
    if rows.shape[1] == 1:
        wide = columns.transpose(1, 2).flatten(2)  # (examples, t, outputs * n)
        product = rows[:, 0].mT @ wide
        product = product.unflatten(2, (columns.shape[1], -1)).transpose(1, 2)
        return product.flatten(2)
    return (rows.mT @ columns).flatten(2)


def _outputs(factor: Factor | Indices) -> int:
    if isinstance(factor, Indices):
        return 1
    return factor.vectors.shape[1]


def contract(left: Sequence[Jacobian], right: Sequence[Jacobian], trace: bool) -> Tensor:
    """Return inner products of the Jacobians of one parameter, each a sum over its uses.

    The result is (left examples, right examples) summed over outputs if `trace`, otherwise (left
    examples, left outputs, right examples, right outputs).
    """
    if _explicit_is_cheaper(left, right, trace):
        return _products(_total(left), left, right, trace)
    parts: list[Tensor] = []
    for one in left:
        for other in right:
            parts.append(_factored(one, other, trace))
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def _total(jacobians: Sequence[Jacobian]) -> Tensor:
    total = jacobians[0].values()
    for jacobian in jacobians[1:]:
        total = total + jacobian.values()
    return accurate(total)


def accurate(x: Tensor) -> Tensor:
    """Return `x` in single precision at least: half precision loses sums."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    return x


def _products(
    mine: Tensor, left: Sequence[Jacobian], right: Sequence[Jacobian], trace: bool
) -> Tensor:
    same = len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))
    theirs = mine if same else _total(right)
    if trace:
        return mine.flatten(1) @ theirs.flatten(1).T
    product = mine.flatten(0, 1) @ theirs.flatten(0, 1).T
    return product.reshape(*mine.shape[:2], *theirs.shape[:2])


def _work_to_form(jacobian: Jacobian, entries: int) -> int:
    """Return the operations that turn the factors of one output into a matrix."""
    if jacobian.is_explicit:
        return 0
    if isinstance(jacobian.rows, Indices):
        return WEIGHT_OF_A_SUM * entries
    return 2 * jacobian.rows.terms * entries


def contraction_flops(
    left: Sequence[Jacobian],
    right: Sequence[Jacobian],
    trace: bool,
    examples: tuple[int, int] | None = None,
    outputs: int | None = None,
) -> tuple[float, float]:
    """Return the operations of the explicit and of the factored form.

    `examples` and `outputs` are numbers other than those of the Jacobians.
    """
    if examples is None:
        examples = left[0].examples, right[0].examples

    def number(*factors: Factor | Indices) -> int:
        """Return the number of outputs that change one of these factors."""
        most = max(_outputs(factor) for factor in factors)
        return most if outputs is None or most == 1 else outputs

    entries = left[0].rows.size * left[0].columns.size
    pairs = examples[0] * examples[1]
    each = number(left[0].rows, left[0].columns)
    explicit = 2.0 * pairs * each * (1 if trace else each) * entries
    sides = ((left, examples[0]),) if left is right else zip((left, right), examples, strict=True)
    for jacobians, count in sides:
        for jacobian in jacobians:
            explicit += count * each * _work_to_form(jacobian, entries)
    factored = 0.0
    for one in left:
        for other in right:
            terms = pairs * one.rows.terms * other.rows.terms
            for mine, theirs in ((one.rows, other.rows), (one.columns, other.columns)):
                times = number(mine, theirs)
                if not trace:
                    times = number(mine) * number(theirs)
                both = isinstance(mine, Factor) and isinstance(theirs, Factor)
                factored += terms * times * (2 * mine.size if both else WEIGHT_OF_A_SUM)
            factored += WEIGHT_OF_A_SUM * terms * (1 if trace else each**2)
    return explicit, factored


def _explicit_is_cheaper(left: Sequence[Jacobian], right: Sequence[Jacobian], trace: bool) -> bool:
    if len(left) == len(right) == 1 and left[0].is_explicit and right[0].is_explicit:
        return True
    if len({use.rows.size for use in (*left, *right)}) > 1:  # only some are multiplied out
        return True
    explicit, factored = contraction_flops(left, right, trace)
    return explicit <= factored


def _factored(one: Jacobian, other: Jacobian, trace: bool) -> Tensor:
    """Return the inner products from products of factors, in blocks of examples."""
    if trace and _mixed(one, other):
        total = _factored(one.output(0), other.output(0), trace)
        for output in range(1, one.outputs):
            total = total + _factored(one.output(output), other.output(output), trace)
        return total
    examples = one.columns.vectors.shape[0]
    outputs = one.outputs
    others = other.columns.vectors.shape[0]
    numbers = others * one.rows.terms * other.rows.terms
    if not trace:
        numbers *= outputs * other.outputs
    step = max(1, BLOCK // max(1, numbers))
    blocks: list[Tensor] = []
    for first in range(0, examples, step):
        part = slice(first, first + step)
        row_products = _gram(one.rows, other.rows, part, trace)
        column_products = _gram(one.columns, other.columns, part, trace)
        blocks.append((row_products * column_products).sum((2, 5) if not trace else (1, 3)))
    return torch.cat(blocks)


def _mixed(one: Jacobian, other: Jacobian) -> bool:
    """Return whether outputs change rows and columns: then their sum is not one over features."""
    rows = max(_outputs(one.rows), _outputs(other.rows))
    columns = max(_outputs(one.columns), _outputs(other.columns))
    return rows > 1 and columns > 1


def _gram(one: Factor | Indices, other: Factor | Indices, part: slice, trace: bool) -> Tensor:
    """Return products of vectors: (a, t, b, s) if `trace`, otherwise (a, o, t, b, p, s)."""
    if isinstance(one, Indices) and isinstance(other, Indices):
        mine = one.indices[part]
        equal = mine[:, :, :, None, None, None] == other.indices[None, None, None]
        gram = equal.to(torch.float32)
        return gram[:, 0, :, :, 0] if trace else gram
    if isinstance(one, Indices):
        assert isinstance(other, Factor)
        return _looked_up(other.vectors, one.indices[part], trace, swap=True)
    if isinstance(other, Indices):
        return _looked_up(one.vectors[part], other.indices, trace, swap=False)
    mine = accurate(one.vectors[part])
    theirs = accurate(other.vectors)
    if not trace:
        flat = mine.flatten(0, 2) @ theirs.flatten(0, 2).T
        return flat.reshape(*mine.shape[:3], *theirs.shape[:3])
    # outputs are features: (a, t, o * size)
    mine = mine.transpose(1, 2).flatten(2)
    theirs = theirs.transpose(1, 2).flatten(2)
    flat = mine.flatten(0, 1) @ theirs.flatten(0, 1).T
    return flat.reshape(*mine.shape[:2], *theirs.shape[:2])


def _looked_up(vectors: Tensor, indices: Tensor, trace: bool, swap: bool) -> Tensor:
    """Return entries `indices`, (b, 1, s), of vectors (a, o, t, size), as a gram."""
    entries = accurate(vectors)[..., indices[:, 0]]  # (a, o, t, b, s)
    if trace:
        entries = entries.sum(1)
        return entries.permute(2, 3, 0, 1) if swap else entries
    entries = entries.unsqueeze(4)  # (a, o, t, b, 1, s)
    return entries.permute(3, 4, 5, 0, 1, 2) if swap else entries
