"""Rows of a packed projection that are queries, and rows that are keys, from gradients.

One forward pass records the operands of every product of two activations. The score product of a
projection W is the first one of which both sides depend on W. With r random, left = (r q).sum() has
a gradient with respect to W that is zero except in the rows that the queries come from. So no name
and no order of packing is assumed: q, k, v one after another, by head, or by group of heads.

Queries can take a factor only if they are linear in these rows and the biases that belong to them.
Euler's theorem tests it: for a linear function, the sum of gradient times parameter is `left`. A
norm between projection and scores makes this sum zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orderone.observe.trace.operations import CONTRACTIONS
from orderone.observe.trace.recorder import Inputs, call_with, undisturbed
from orderone.torch_compat import OpOverload, TorchDispatchMode, operator_schema

LINEAR = 1e-3  # relative deviation from Euler's theorem that rounding may cause


@dataclass(frozen=True)
class Entries:
    """Ranges of indices along one axis of a tensor."""

    axis: int
    size: int  # number of indices along the axis
    ranges: tuple[tuple[int, int], ...]

    @property
    def share(self) -> float:
        """Fraction of the tensor's entries."""
        return sum(last - first for first, last in self.ranges) / self.size

    def scaled_to(self, size: int) -> "Entries | None":
        """Return the same fractions of an axis with another size; None if they do not fit."""
        ranges: list[tuple[int, int]] = []
        for first, last in self.ranges:
            if first * size % self.size or last * size % self.size:
                return None
            ranges.append((first * size // self.size, last * size // self.size))
        return Entries(self.axis, size, tuple(ranges))


@dataclass(frozen=True)
class PackedScores:
    """Queries and keys inside a packed projection, by names of its tensors (weight, bias)."""

    queries: Mapping[str, Entries]
    keys: Mapping[str, Entries]


class _Products(TorchDispatchMode):
    """A mode that collects the operands of products of two tensors that need gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        schema = operator_schema(func)
        name = schema.name.removeprefix("aten::")
        sides: tuple[str, str] | None = None
        if "scaled_dot_product" in name:
            sides = ("query", "key")
        elif name in CONTRACTIONS:
            _, left, right, _, _ = CONTRACTIONS[name]
            sides = (left, right)
        if sides is not None:
            names = [argument.name for argument in schema.arguments]
            arguments = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
            pair: list[Tensor] = []
            for side in sides:
                operand = arguments.get(side)
                if isinstance(operand, Tensor) and operand.requires_grad:
                    pair.append(operand)
            if len(pair) == 2:
                self.operands.append((pair[0], pair[1]))
        return func(*args, **(kwargs or {}))


def packed_scores(
    model: nn.Module, inputs: Inputs, fan_in: Mapping[str, tuple[int, ...]]
) -> dict[str, PackedScores]:
    """Return queries and keys of each packed matrix; matrices without evidence are left out.

    `fan_in` has the names of the matrices, with the axes that their products sum over.
    """
    args, kwargs = call_with(inputs)
    products = _Products()
    with undisturbed(model), torch.enable_grad(), products:
        model(*args, **kwargs)
    parameters = dict(model.named_parameters())
    result: dict[str, PackedScores] = {}
    start = 0
    for name, summed in fan_in.items():
        family = _family(name, parameters)
        for place in range(start, len(products.operands)):
            scores = _scores_in(products.operands[place], name, family, summed)
            if scores is not None:
                start = place + 1
                if scores.queries and scores.keys:
                    result[name] = scores
                break
    return result


def _family(name: str, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a matrix, and the vectors of the same module that are as long as one of its axes."""
    module = name.rpartition(".")[0]
    family = {name: parameters[name]}
    for other, tensor in parameters.items():
        is_sibling = other.rpartition(".")[0] == module and tensor.dim() == 1
        if is_sibling and tensor.requires_grad and tensor.shape[0] in parameters[name].shape:
            family[other] = tensor
    return family


def _scores_in(
    operands: tuple[Tensor, Tensor],
    name: str,
    family: Mapping[str, Tensor],
    summed: Sequence[int],
) -> PackedScores | None:
    """Return None if not both sides of a product depend on the matrix.

    The result is empty if they do, but the queries cannot take a factor, or share rows with keys.
    """
    sides: list[dict[str, Entries]] = []
    linear: list[bool] = []
    for operand in operands:
        gradients, value, scale = _gradients(operand, family)
        if name not in gradients:
            return None
        entries: dict[str, Entries] = {}
        for other, gradient in gradients.items():
            nonzero = _entries(gradient, summed if other == name else ())
            if nonzero is not None:
                entries[other] = nonzero
        euler = sum(float((gradients[n] * family[n].detach()).sum()) for n in gradients)
        linear.append(abs(euler - value) <= LINEAR * scale)
        sides.append(entries)
    queries, keys = sides
    complete = name in queries and name in keys
    if not complete or not linear[0] or _overlap(queries[name], keys[name]):
        return PackedScores({}, {})
    return PackedScores(queries, keys)


def _gradients(
    operand: Tensor, family: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], float, float]:
    """Return the gradients of (r operand).sum() that are not zero, its value, and its size."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(operand.shape, generator=generator).to(operand)
    value = (random * operand).sum()
    raw_gradients = torch.autograd.grad(
        value, list(family.values()), retain_graph=True, allow_unused=True
    )
    gradients: dict[str, Tensor] = {}
    for name, gradient in zip(family, raw_gradients, strict=True):
        if gradient is not None and bool(gradient.any()):
            gradients[name] = gradient
    total = float(value.detach())
    scale = math.sqrt(float((random * operand).detach().square().sum()))
    return gradients, total, max(scale, abs(total))


def _entries(gradient: Tensor, summed: Sequence[int]) -> Entries | None:
    """Return where a gradient is not zero: along one axis, or None if several are needed."""
    free = [axis for axis in range(gradient.dim()) if axis not in summed]
    partial: list[Entries] = []
    for axis in free:
        others = [other for other in range(gradient.dim()) if other != axis]
        used = gradient != 0
        if others:
            used = used.sum(dim=others) > 0
        entries = Entries(axis, gradient.shape[axis], _ranges(used.tolist()))
        if entries.share < 1:
            partial.append(entries)
    if len(partial) == 1:
        return partial[0]
    return None


def _ranges(used: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    start: int | None = None
    for index, is_used in enumerate([*used, False]):
        if is_used and start is None:
            start = index
        elif not is_used and start is not None:
            ranges.append((start, index))
            start = None
    return tuple(ranges)


def _overlap(first: Entries, second: Entries) -> bool:
    if first.axis != second.axis:
        return True
    for start, stop in first.ranges:
        for other_start, other_stop in second.ranges:
            if start < other_stop and other_start < stop:
                return True
    return False
