"""A forward pass as a graph of steps, and the facts that are read off the graph.

`Value` says where a tensor comes from, `Operation` what was called, `Step` how values pass through
an operation. Every tensor has one of four levels:

    CONSTANT     made from numbers and buffers alone
    DATA         made from the inputs, no parameter yet
    PARAMETER    a parameter, a view or a copy of one, or a function of parameters alone, such as
                 1 + weight
    ACTIVATION   result of the use of a parameter

A parameter is used where a PARAMETER meets DATA or an ACTIVATION. Its summed axes follow from
strides: a view moves through the memory of its owner, and the stride of the contracted dimension
says along which of the owner's dimensions. `Graph` finds constants, attention scores and residual
branches by walking along the steps in which a value is linear. On the meta device a constant in a
tensor cannot be read: its value is None.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from orderone.observe.trace.facts import Branch, Constant, Scores, Use
from orderone.torch_compat import storage_id, tree_leaves

_PASSED = frozenset({"pass", "add", "shift", "constant", "weighting"})
_STREAM = frozenset({"pass", "add", "shift", "constant"})
_USES = ("matrix", "convolution", "lookup")
_MAKERS = frozenset({"matrix", "convolution", "lookup", "norm"})


class Level(IntEnum):
    """Origin of a tensor; see the head of this file."""

    CONSTANT, DATA, PARAMETER, ACTIVATION = range(4)


# for each dimension of a tensor, the axes of the parameter that it runs along
Dims = tuple[tuple[int, ...], ...]
# parameters that a tensor is computed from; None: their axes are lost
Weights = dict[str, Dims | None]


@dataclass
class Value:
    """A tensor with its origin.

    It holds the tensor, so that no other tensor can get the same id or memory.
    """

    tensor: Tensor
    level: Level = Level.CONSTANT
    # the step that made it; None for constants and for unchanged parameters
    step: int | None = None
    weights: Weights = field(default_factory=dict)  # at level PARAMETER
    owner: "Value | None" = None  # owner of the memory, if this is a view of a PARAMETER
    # a PARAMETER that is copied along a batch: it counts as an input, not as a weight
    spread: bool = False

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point() or self.tensor.is_complex()

    @property
    def is_input(self) -> bool:
        return self.level in (Level.DATA, Level.ACTIVATION)

    @property
    def is_weight(self) -> bool:
        return self.level == Level.PARAMETER

    def used(self, kind: str) -> list[tuple[str, Use]]:
        """Return a use of this kind for every parameter in the tensor."""
        return [(name, Use(kind)) for name in self.weights]

    def summed(self, kind: str, dims: Iterable[int]) -> list[tuple[str, Use]]:
        """Return uses that sum over `dims` of the tensor, as axes of the parameters."""
        dims = list(dims)
        uses: list[tuple[str, Use]] = []
        for name, axes_by_dim in self.weights.items():
            summed: set[int] = set()
            if axes_by_dim:
                for dim in dims:
                    summed.update(axes_by_dim[dim])
            uses.append((name, Use(kind, tuple(sorted(summed)) or None)))
        return uses


@dataclass
class Step:
    """An operation, classified by how values pass through it.

    pass, add, shift, constant, gain, weighting    linear; weighting is a product with a tensor made
                                                   without parameters
    product, contraction, attention                of activations: linear in each of `flow`
    matrix, convolution, lookup                    uses of parameters, where every walk stops
    normalized, norm                               division by a statistic; norm: with a gain
    softcap, softmax, stop                         not linear
    weights                                        the result is at level PARAMETER
    """

    kind: str
    flow: list[Value] = field(default_factory=list)  # the activations that pass through
    uses: list[tuple[str, Use]] = field(default_factory=list)
    factor: float | None = 1.0  # value of a constant; scale inside attention
    size: float = 1.0  # RMS of what a constant multiplies, if it was just normalized
    features: int = 0  # of a matrix: its fan-out
    # of a contraction: for both operands their step, and the sizes that are summed and not summed
    sides: tuple[tuple[int, int, int], ...] = ()
    gain: Value | None = None  # the parameters of a gain
    weights: Weights | None = None  # None: derive them from the tensors
    bends: bool = False  # f(c x) is no power of c times f(x)
    scaled_gain: bool = False  # a number multiplies the parameters of the gain; `factor` is it
    statistic: bool = False  # a root of a mean square, of a variance, ...
    # repeats an operation that moves entries of its operands; the argument replaces its tensors
    move: "Callable[[Callable[[Tensor], Tensor]], object] | None" = None
    fed: bool = False  # depends on the inputs
    # steps of possible queries and keys, and the head size
    product: tuple[int, int, int] | None = None
    parents: tuple[int, ...] = ()  # the steps of `flow`
    ancestors: int = 0  # bit mask of steps, this one included


@dataclass(frozen=True)
class Operation:
    """A call of an aten operation."""

    name: str
    arguments: Mapping[str, Any]
    operands: list[Value]
    results: list[Tensor]
    # repeats the call; the argument replaces its tensors
    repeat: Callable[[Callable[[Tensor], Tensor]], object] | None = None

    @property
    def live(self) -> list[Value]:
        """Operands that depend on inputs or parameters."""
        return [value for value in self.operands if value.level != Level.CONSTANT]

    @property
    def inputs(self) -> list[Value]:
        """Floating operands that are data or activations."""
        return [value for value in self.operands if value.is_input and value.is_float]

    @property
    def other_uses(self) -> list[tuple[str, Use]]:
        """Uses of all parameters among the operands, without a known kind."""
        uses: list[tuple[str, Use]] = []
        for value in self.operands:
            uses += value.used("other")
        return uses


# --- facts from the steps -------------------------------------------------------------------------


class Graph:
    """The recorded steps, with methods that walk along them."""

    def __init__(self, steps: Sequence[Step]):
        self.steps = steps
        self.children: list[list[int]] = [[] for _ in steps]
        for index, step in enumerate(steps):
            for parent in step.parents:
                self.children[parent].append(index)

    def _back(
        self,
        starts: Iterable[int],
        passed: frozenset[str],
        readers: dict[int, int] | None = None,
    ) -> Iterator[tuple[int, Step, float | None]]:
        """Yield steps from `starts` backwards through the kinds in `passed`, each with the constant
        factor between it and the start.

        In `readers`, every step gets the next one on the way to the start.
        """
        visited: set[int] = set()
        stack: list[tuple[int, float | None]] = [(start, 1.0) for start in starts]
        while stack:
            index, factor = stack.pop()
            if index in visited:
                continue
            visited.add(index)
            step = self.steps[index]
            yield index, step, factor
            if step.kind not in passed:
                continue
            for parent in step.parents:
                stack.append((parent, _product(factor, step.factor)))
                if readers is not None:
                    readers.setdefault(parent, index)

    def constants(self) -> Iterator[Constant]:
        """Yield the constants that multiply activations, except those that a norm divides out."""
        for index, step in enumerate(self.steps):
            if step.kind == "constant" and not self.is_divided_out(index):
                yield self._constant(index, step)

    def is_divided_out(self, index: int) -> bool:
        """Return whether all that reads a step divides it by its size: a factor has no effect."""
        has_norm = False
        for child in self.children[index]:
            step = self.steps[child]
            divides = step.kind in ("norm", "normalized")
            if step.kind in ("pass", "constant") and len(step.parents) == 1:
                divides = self.is_divided_out(child)
            if not divides and not self._makes_statistics(child):
                return False
            has_norm |= divides
        return has_norm

    def _makes_statistics(self, index: int) -> bool:
        """Return whether a step is read by roots of mean squares and variances alone."""
        if self.steps[index].statistic:
            return True
        children = self.children[index]
        return bool(children) and all(self._makes_statistics(child) for child in children)

    def _constant(self, index: int, step: Step) -> Constant:
        makers: list[str] = []
        kinds: list[str] = []
        made_at: list[int] = []
        for maker_index, maker in self._makers(step):
            for name, use in maker.uses:
                makers.append(name)
                kinds.append(use.kind)
                if use.kind in _USES:
                    made_at.append(maker_index)
        takers: list[str] = []
        taken_at: list[int] = []
        for taker_index, name in self._takers(index):
            takers.append(name)
            taken_at.append(taker_index)
        at = tuple(made_at or taken_at)
        return Constant(
            step.factor,
            _once(makers),
            _once(takers),
            at,
            _once(kinds),
            step.size,
            self._is_summand(index),
        )

    def linear_in(self, index: int) -> tuple[str, ...]:
        """Return the matrices and tables that make the input of a step or read its result.

        Initial size and learning rate of such a tensor can compensate a factor in this step.
        """
        names: list[str] = []
        for _, maker in self._makers(self.steps[index]):
            names += [name for name, use in maker.uses if use.kind in _USES]
        names += [name for _, name in self._takers(index)]
        return _once(names)

    def is_product(self, index: int) -> bool:
        """Return whether a step is linear in a matrix product of two activations."""
        return any(maker.kind == "contraction" for _, maker in self._makers(self.steps[index]))

    def _makers(self, step: Step) -> Iterator[tuple[int, Step]]:
        """Yield the steps that made the input of a step, back to the last nonlinearity.

        A product with a matrix that a parameter writes is linear in that parameter.
        """
        for index, maker, _ in self._back(step.parents, _PASSED):
            yield index, maker
            for _, written in self._written_sides(maker):
                yield written, self.steps[written]

    def _is_summand(self, index: int) -> bool:
        """Return whether all that reads a step adds it to another activation."""
        children = self.children[index]
        for child in children:
            kind = self.steps[child].kind
            if kind != "add" and not (kind == "pass" and self._is_summand(child)):
                return False
        return bool(children)

    def _takers(self, start: int) -> list[tuple[int, str]]:
        """Return the parameters whose uses read the result of `start`, each with its step.

        The factor of one term is no factor of a sum: the walk ends at sums of activations.
        """
        takers: list[tuple[int, str]] = []
        visited = {start}
        stack = [start]
        while stack:
            for child in self.children[stack.pop()]:
                step = self.steps[child]
                for name, use in step.uses:
                    if use.kind in _USES:
                        takers.append((child, name))
                if step.kind in _PASSED - {"add"} and child not in visited:
                    visited.add(child)
                    stack.append(child)
        return takers

    def scores(self) -> tuple[tuple[Scores, ...], set[int]]:
        """Return the attention scores, and the additions between product and softmax.

        Such additions add masks and biases; they are not residual connections.
        """
        scores: list[Scores] = []
        score_sums: set[int] = set()
        for step in self.steps:
            if step.kind == "attention" and step.product:
                scores.append(self._scores(step.product, step.factor))
            if step.kind != "softmax":
                continue
            sums: set[int] = set()
            has_product = False
            for index, maker, factor in self._back(step.parents, _PASSED | {"softcap"}):
                if maker.kind == "add":
                    sums.add(index)
                elif maker.kind == "contraction":
                    has_product = True
                    if maker.product:
                        scores.append(self._scores(maker.product, factor))
            if has_product:
                score_sums |= sums
        return tuple(scores), score_sums

    def _scores(self, product: tuple[int, int, int], scale: float | None) -> Scores:
        query_step, key_step, head_size = product
        queries, query_factor, queries_normalized = self._side(query_step)
        keys, key_factor, keys_normalized = self._side(key_step)
        scale = _product(_product(scale, query_factor), key_factor)
        return Scores(queries, keys, head_size, scale, queries_normalized and keys_normalized)

    def _side(self, start: int) -> tuple[tuple[str, ...], float | None, bool]:
        """Return the parameters that made queries or keys, the constant factor after them, and
        whether they are the output of a norm."""
        names: list[str] = []
        factors: list[float | None] = []
        normalized = False
        for _, step, factor in self._back([start], _PASSED | {"gain", "normalized"}):
            if step.kind not in _MAKERS and step.kind != "normalized":
                continue
            factors.append(factor)
            normalized |= step.kind in ("norm", "normalized")
            for name, use in step.uses:
                if use.kind not in ("shift", "other"):
                    names.append(name)
        return _once(names), factors[0] if factors else 1.0, normalized

    def branches(self, score_sums: set[int]) -> tuple[Branch, ...]:
        """Return the residual branches; `score_sums` are additions that close none."""
        branches: list[Branch] = []
        for index, step in enumerate(self.steps):
            if step.kind != "add" or len(step.parents) != 2 or index in score_sums:
                continue
            branch = self._branch(step)
            if branch is not None:
                branches.append(branch)
        return tuple(branches)

    def _branch(self, step: Step) -> Branch | None:
        """Return the branch that the addition `step` closes, or None.

        If x is not an ancestor of f(x) itself, one of its summands may be:
        (x + attention(x)) + mlp(x).
        """
        first, second = step.parents
        directions = ((first, second), (second, first))
        pairs = [pair for pair in directions if self._leads_to(*pair)]
        if not pairs:
            for skip, end in directions:
                start = self._latest_in_stream(skip, end)
                if start is not None:
                    pairs.append((start, end))
        branches: list[Branch] = []
        for start, end in pairs:
            inside = self._inside(start, end)
            if inside:
                branches.append(Branch(self._last(start, end), inside))
        if len(branches) != 1:
            return None
        return branches[0]

    def _latest_in_stream(self, skip: int, end: int) -> int | None:
        """Return the latest summand of `skip` that is an ancestor of `end`."""
        latest: int | None = None
        for index, _, _ in self._back([skip], _STREAM):
            if self._leads_to(index, end) and (latest is None or index > latest):
                latest = index
        return latest

    def _leads_to(self, early: int, late: int) -> bool:
        return self.steps[early].fed and self._between(early, early, late)

    def _between(self, start: int, index: int, end: int) -> bool:
        if end == start:
            return False
        before_end = self.steps[end].ancestors >> index & 1
        behind_start = self.steps[index].ancestors >> start & 1
        return bool(before_end and behind_start)

    def _inside(self, start: int, end: int) -> tuple[str, ...]:
        """Return the parameters that are used between two steps."""
        names: list[str] = []
        for index in range(start + 1, end + 1):
            if self._between(start, index, end):
                names += [name for name, _ in self.steps[index].uses]
        return _once(names)

    def _last(self, start: int, end: int) -> tuple[str, ...]:
        """Return the parameters that the end of a branch is linear in."""
        names: list[str] = []
        passed = _PASSED | {"gain", "product", "contraction", "attention"}
        for index, step, _ in self._back([end], passed):
            if index <= start or not self._between(start, index, end):
                continue
            if step.kind in _MAKERS or step.kind == "shift":
                names += [name for name, use in step.uses if use.kind != "other"]
        return _once(names)

    def carriers(self) -> dict[str, tuple[str, ...]]:
        """Return gain and shift of the norm before a matrix, by name of the matrix.

        A constant in front of the matrix could be moved into these parameters.
        """
        carriers: dict[str, tuple[str, ...]] = {}
        for step in self.steps:
            if step.kind == "matrix" and len(step.parents) == 1:
                names = self._norm_before(step)
            else:
                names = ()
            for name, use in step.uses:
                if use.kind == "matrix":
                    is_the_same = carriers.get(name, names) == names
                    if is_the_same:
                        carriers[name] = names
                    else:
                        carriers[name] = ()
        return {name: names for name, names in carriers.items() if names}

    def generated_matrices(self) -> dict[str, tuple[int, int]]:
        """Return the fan-in and fan-out of matrices that other parameters write, by parameter.

        The output of a hypernetwork, reshaped, is multiplied with an activation.
        """
        generated: dict[str, tuple[int, int]] = {}
        for step in self.steps:
            for side, maker in self._written_sides(step):
                for name, _ in self.steps[maker].uses:
                    generated[name] = side[1:]
        return generated

    def _written_sides(self, step: Step) -> Iterator[tuple[tuple[int, int, int], int]]:
        """Yield the operands of a contraction that a parameter writes as a whole matrix.

        Each comes with the step in which the parameter is used.
        """
        for side in step.sides:
            start, summed, others = side
            readers: dict[int, int] = {}
            for index, maker, _ in self._back([start], _PASSED, readers):
                if maker.features != summed * others or others == 1:
                    continue
                numbers = self._numbers_of_features(index, readers)
                # head size times tokens may equal the features of queries by chance
                if numbers is None or _all_different(numbers):
                    yield side, index

    def _numbers_of_features(self, maker: int, readers: Mapping[int, int]) -> Tensor | None:
        """Return which output feature of `maker` is at every entry at the end of its readers.

        The operations on the way are repeated on numbers of features. None: one of them does more
        than to move entries.
        """
        numbers: Tensor | None = None
        index = maker
        while index in readers:
            reader = self.steps[readers[index]]
            made_by = [value for value in reader.flow if value.step is not None]
            if len(made_by) != len(reader.parents):
                return None
            tensor = made_by[reader.parents.index(index)].tensor
            if numbers is None and tensor.shape[-1] == self.steps[maker].features:
                numbers = torch.arange(tensor.shape[-1]).expand(tensor.shape)
            if numbers is None or numbers.shape != tensor.shape:
                return None
            if reader.move is not None:
                numbers = _moved(numbers, tensor, reader.move)
            index = readers[index]
        return numbers

    def normalized_matrices(self) -> frozenset[str]:
        """Return the matrices whose output, or a sum with it, a norm divides by its size."""
        starts: list[int] = []
        for step in self.steps:
            if step.kind in ("norm", "normalized"):
                starts += step.parents
        names: set[str] = set()
        # from all norms at once: each of many norms in a row may lead back to the first layer
        for _, maker, _ in self._back(starts, _PASSED | {"gain"}):
            names.update(name for name, use in maker.uses if use.kind == "matrix")
        return frozenset(names)

    def parallel_lists(self, used_at: Mapping[str, Sequence[int]]) -> frozenset[str]:
        """Return the names of lists whose members do not read each other's outputs.

        `used_at` has the steps in which each parameter is used. Members of a list have a number in
        their names: `heads` for `heads.0.q.weight` and `heads.1.q.weight`.
        """
        members: dict[str, dict[str, list[int]]] = {}
        for name, steps in used_at.items():
            parts = name.split(".")
            for position, part in enumerate(parts):
                if part.isdigit():
                    steps_by_member = members.setdefault(".".join(parts[:position]), {})
                    steps_by_member.setdefault(part, []).extend(steps)
        parallel: set[str] = set()
        for list_name, steps_by_member in members.items():
            if len(steps_by_member) > 1 and self._are_parallel(list(steps_by_member.values())):
                parallel.add(list_name)
        return frozenset(parallel)

    def _are_parallel(self, members: Sequence[Sequence[int]]) -> bool:
        used: list[int] = []  # bit masks of steps
        before: list[int] = []
        for steps in members:
            mask = 0
            ancestors = 0
            for step in steps:
                mask |= 1 << step
                ancestors |= self.steps[step].ancestors
            used.append(mask)
            before.append(ancestors)
        everywhere = 0
        for mask in used:
            everywhere |= mask
        return all(
            not ancestors & everywhere & ~mask for mask, ancestors in zip(used, before, strict=True)
        )

    def _norm_before(self, step: Step) -> tuple[str, ...]:
        names: list[str] = []
        while len(step.parents) == 1 and len(self.children[step.parents[0]]) == 1:
            step = self.steps[step.parents[0]]
            names += [name for name, use in step.uses if use.kind in ("gain", "shift")]
            if step.kind in ("gain", "norm"):
                return _once(names)
            if step.kind not in ("pass", "constant", "shift"):
                break
        return ()


def _product(factor: float | None, other: float | None) -> float | None:
    if factor is None or other is None:
        return None
    return factor * other


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


# --- parameters behind views and copies -----------------------------------------------------------


def weights_of_view(view: Tensor, owner: Value) -> Weights:
    """Return the parameter axes of each dimension of `view`, from its strides in the memory of
    `owner`."""
    spans = [_span(view.shape[d], view.stride(d), owner.tensor) for d in range(view.ndim)]
    weights: Weights = {}
    for name, dims in owner.weights.items():
        weights[name] = None if dims is None else _along(spans, dims)
    return weights


def _along(spans: Sequence[Sequence[int]], dims: Dims) -> Dims:
    """Return the axes of each span of dimensions; `dims` has the axes of every dimension."""
    result: list[tuple[int, ...]] = []
    for span in spans:
        axes: list[int] = []
        for dim in span:
            axes += dims[dim]
        result.append(tuple(axes))
    return tuple(result)


def _span(size: int, stride: int, owner: Tensor) -> list[int]:
    """Return the dimensions of `owner` that a dimension of a view is a part of, or merges."""
    if size == 1 or stride == 0:
        return []
    dims: list[int] = []
    for dim in range(owner.ndim):
        if owner.shape[dim] <= 1:
            continue
        start = owner.stride(dim)
        end = start * owner.shape[dim]
        is_part = start <= stride < end
        is_covered = stride <= start < stride * size
        if is_part or is_covered:
            dims.append(dim)
    return dims


def derived(operation: Operation, tensor: Tensor, owner: Value | None) -> Weights:
    """Return the parameters in a tensor that is computed from parameters alone."""
    weights: Weights = {}
    for value in operation.live:
        for name, dims in _carried(operation, value, tensor, owner).items():
            weights[name] = weights.get(name) or dims
    return weights


def _carried(operation: Operation, value: Value, tensor: Tensor, owner: Value | None) -> Weights:
    order = _order(operation, value.tensor.ndim)
    if order is None and owner is not None and _is_other_view(value.tensor, tensor):
        return weights_of_view(tensor, owner)
    weights: Weights = {}
    for name, dims in value.weights.items():
        if not dims:
            weights[name] = dims
        elif order is not None:
            weights[name] = tuple(dims[d] for d in order)
        else:
            weights[name] = _aligned(dims, value.tensor.shape, tensor.shape)
    return weights


def _is_other_view(tensor: Tensor, other: Tensor) -> bool:
    return memory(tensor) == memory(other) and _layout(tensor) != _layout(other)


def _order(operation: Operation, ndim: int) -> list[int] | None:
    """Return the new order of dimensions after a transposition, None for other operations.

    Sizes of one make strides ambiguous; the arguments of the call are exact.
    """
    arguments = operation.arguments
    if operation.name == "t":
        return list(range(ndim))[::-1]
    if operation.name == "permute":
        return [d % ndim for d in arguments["dims"]]
    if operation.name != "transpose":
        return None
    order = list(range(ndim))
    first = arguments["dim0"]
    second = arguments["dim1"]
    order[first], order[second] = order[second], order[first]
    return order


def _aligned(dims: Dims, shape: Sequence[int], result: Sequence[int]) -> Dims | None:
    """Return `dims` after an elementwise operation with broadcasting.

    None if the result has fewer dimensions: then the axes are lost.
    """
    new = len(result) - len(shape)
    if new < 0:
        return None
    aligned: list[tuple[int, ...]] = [()] * new
    for axes, size, result_size in zip(dims, shape, result[new:], strict=False):
        aligned.append(axes if size == result_size else ())
    return tuple(aligned)


def dims_after_index(
    dims: Dims | None, at: Sequence[int], indices: Sequence[Tensor | None]
) -> Dims | None:
    """Return `dims` after indexing with `indices`, of which the dimensions `at` are not None."""
    index = indices[at[0]]
    if dims is None or len(at) > 1 or index is None or index.dtype in (torch.bool, torch.uint8):
        return None
    return dims[: at[0]] + ((),) * index.ndim + dims[at[0] + 1 :]


def is_spread(operation: Operation, tensor: Tensor) -> bool:
    """Return whether a parameter is copied along a dimension of `tensor`."""
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size > 1 and stride == 0:
            return True
    return operation.name == "repeat" or any(value.spread for value in operation.live)


def _moved(
    numbers: Tensor, tensor: Tensor, move: Callable[[Callable[[Tensor], Tensor]], object]
) -> Tensor | None:
    """Return where `move` puts `numbers` in place of `tensor`; -1 stands for other operands."""

    def replaced(operand: Tensor) -> Tensor:
        if operand is tensor:
            return numbers
        if operand.is_floating_point() or operand.is_complex():
            return torch.full(operand.shape, -1)
        return operand

    try:
        moved = move(replaced)
    except (RuntimeError, TypeError, ValueError):  # not an operation on integers on the CPU
        return None
    if isinstance(moved, (list, tuple)) and moved:  # the parts of a split are alike
        moved = moved[0]
    if isinstance(moved, Tensor):
        return moved
    return None


def _all_different(numbers: Tensor) -> bool:
    """Return whether the first matrix, of the last two dimensions, has no number twice."""
    matrix = numbers.reshape(-1, *numbers.shape[-2:])[0]
    return matrix.unique().numel() == matrix.numel()


def tensors_in(nested: object) -> list[Tensor]:
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]


def memory(tensor: Tensor) -> int:
    """Return a number that all views of one piece of memory share."""
    return storage_id(tensor.untyped_storage())


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Return offset and number of entries of a tensor within its memory."""
    return int(tensor.storage_offset()), tensor.numel()


def _layout(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.shape, tensor.stride()


def read_number(x: Tensor | int | float) -> float | None:
    """Return a number or the value of a tensor with one entry; None on the meta device."""
    if not isinstance(x, Tensor):
        return float(x)
    if x.is_meta:
        return None
    return float(x.item())
