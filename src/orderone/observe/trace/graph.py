"""Facts that are read off the steps of a forward pass.

`Graph` finds constants, attention scores and residual branches by walking along the steps in which
a value is linear.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from orderone.observe.trace.facts import Branch, Constant, Scores
from orderone.observe.trace.steps import Step, Value, is_of

_PASSED = frozenset({"pass", "add", "shift", "constant", "weighting"})
_STREAM = frozenset({"pass", "add", "shift", "constant"})
_PRODUCTS = frozenset({"product", "contraction", "attention"})
_SCORES = frozenset({"contraction", "attention", "softmax"})
_USES = ("matrix", "convolution", "lookup")
_MIXING = frozenset({*_USES, "table"})
_MAKERS = frozenset({"matrix", "convolution", "lookup", "norm"})

FIRST_INPUT = "weight_ih_l0"  # prefix of the tensors in torch's recurrent layers that read inputs


class Graph:
    """The recorded steps, with methods that walk along them."""

    def __init__(self, steps: Sequence[Step]):
        self.steps = steps
        self.children: list[list[int]] = [[] for _ in steps]
        mixing = {step.layer for step in steps if step.kind in _SCORES}
        for index, step in enumerate(steps):
            for parent in step.parents:
                self.children[parent].append(index)
            if step.layer in mixing:  # more than a product with its matrix
                step.layer = ""

    def _back(
        self,
        starts: Iterable[int],
        passed: frozenset[str],
        readers: dict[int, int] | None = None,
        in_layers: bool = True,
    ) -> Iterator[tuple[int, Step, float | None]]:
        """Yield steps from `starts` backwards through the kinds in `passed`, each with the constant
        factor between it and the start.

        In `readers`, every step gets the next one on the way to the start. Factors inside of layers
        count if `in_layers` is True.
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
            if in_layers or not step.layer:
                factor = _product(factor, step.factor)
            for parent in step.parents:
                stack.append((parent, factor))
                if readers is not None:
                    readers.setdefault(parent, index)

    def constants(self) -> Iterator[Constant]:
        """Yield the constants that multiply activations, except those that a norm divides out, and
        those of a soft cap c tanh(x / c), which leaves small values as they are."""
        for index, step in enumerate(self.steps):
            if step.kind != "constant" or self.is_divided_out(index) or self._is_cap(index):
                continue
            yield self._constant(index, step)

    def _is_cap(self, index: int) -> bool:
        """Return whether a tanh follows a constant, and behind it the constant is divided out."""
        factor = self.steps[index].factor
        cap = self._next(index)
        if factor is None or cap is None or self.steps[cap].kind != "softcap":
            return False
        behind = self._next(cap)
        if behind is None or self.steps[behind].kind != "constant":
            return False
        inverse = self.steps[behind].factor
        return inverse is not None and math.isclose(factor * inverse, 1, rel_tol=1e-3)

    def _next(self, index: int) -> int | None:
        """Return the only step that reads this one, behind steps that only move entries."""
        while len(self.children[index]) == 1:
            [index] = self.children[index]
            if self.steps[index].kind != "pass":
                return index
        return None

    def is_divided_out(self, index: int) -> bool:
        """Return whether all that reads a step divides it by its size: a factor has no effect."""
        has_norm = False
        for child in self.children[index]:
            step = self.steps[child]
            divides = step.kind in ("norm", "normalized")
            if step.kind in ("pass", "constant") and len(step.parents) == 1:
                divides = self.is_divided_out(child)
            if not divides and not self.makes_statistics(child):
                return False
            has_norm |= divides
        return has_norm

    def makes_statistics(self, index: int) -> bool:
        """Return whether a step is read by roots of mean squares and variances alone."""
        if self.steps[index].statistic:
            return True
        children = self.children[index]
        return bool(children) and all(self.makes_statistics(child) for child in children)

    def _constant(self, index: int, step: Step) -> Constant:
        taken = self._takers(index)
        made = [(at, name, use) for at, m in self._makers(step) for name, use in m.uses]
        own_takers = [(at, name) for at, name in taken if is_of(name, step.layer)]
        own_makers = [(at, name, use) for at, name, use in made if is_of(name, step.layer)]
        if own_takers:
            taken = own_takers
        if own_takers or (taken and not self._reads_all(index)):
            made = []
        elif own_makers:
            made = own_makers
        made_at = [at for at, _, use in made if use.kind in _USES]
        return Constant(
            step.factor,
            _once(name for _, name, _ in made),
            _once(name for _, name in taken),
            tuple(made_at or [at for at, _ in taken]),
            _once(use.kind for _, _, use in made),
            step.size,
            self._is_summand(index),
            bool(own_takers or own_makers),
        )

    def _reads_all(self, index: int) -> bool:
        """Return whether nothing but this step reads what its makers make.

        A factor in front of a layer that reads a residual stream is no factor of the stream.
        """
        before = {at for at, _, _ in self._back(self.steps[index].parents, _PASSED)} | {index}
        return all(child in before for at in before - {index} for child in self.children[at])

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
        whether they are the output of a norm.

        A factor inside of the layer that makes them belongs to this layer.
        """
        names: list[str] = []
        factors: list[float | None] = []
        normalized = False
        passed = _PASSED | {"gain", "normalized"}
        for _, step, factor in self._back([start], passed, in_layers=False):
            if step.kind not in _MAKERS and step.kind != "normalized":
                continue
            factors.append(factor)
            normalized |= step.kind in ("norm", "normalized")
            for name, use in step.uses:
                if use.kind not in ("shift", "other"):
                    names.append(name)
        return _once(names), factors[0] if factors else 1.0, normalized

    def branches(self, score_sums: set[int]) -> tuple[Branch, ...]:
        """Return the residual branches; `score_sums` are additions that close none.

        A recurrence is none: x_t + W h_{t-1}, where one result holds all x_t, uses W at every step.
        """
        spans: list[tuple[int, int]] = []
        for index, step in enumerate(self.steps):
            if step.kind != "add" or len(step.parents) != 2 or index in score_sums:
                continue
            span = self._branch(step)
            if span is not None:
                spans.append(span)
        recurrent: set[str] = set()
        for span in spans:
            recurrent |= self._recurrent(*span)
        branches: list[Branch] = []
        for span in spans:
            inside = _once(self._inside(*span))
            if not recurrent.issuperset(inside):
                branches.append(Branch(_once(self._last(*span)), inside))
        return tuple(branches)

    def _branch(self, step: Step) -> tuple[int, int] | None:
        """Return start and end of the branch that the addition `step` closes, or None.

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
        spans = [pair for pair in pairs if self._inside(*pair)]
        if len(spans) != 1 or any(self._modulates(step, *pair) for pair in directions):
            return None
        return spans[0]

    def _modulates(self, step: Step, shift: int, product: int) -> bool:
        """Return whether a sum is y * scale + shift, where scale and shift are parts of one result.

        The shift is no stream, although y depends on it through earlier layers (adaptive norms).
        """
        while self.steps[product].kind == "pass" and len(self.steps[product].parents) == 1:
            [product] = self.steps[product].parents
        if self.steps[product].kind != "product":
            return False
        size = max(value.tensor.numel() for value in step.flow if value.step == shift)
        wholes = {index for index, _, _ in self._back([shift], _STREAM)}
        for factor in self.steps[product].parents:
            for index, maker, _ in self._back([factor], _STREAM):
                is_part = any(value.tensor.numel() > size for value in maker.flow)
                if index in wholes and maker.kind == "pass" and is_part:
                    return True
        return False

    def _recurrent(self, start: int, end: int) -> set[str]:
        """Return the parameters of a recurrence: its last matrix is used earlier in it, too."""
        uses = Counter(self._inside(start, end))
        last_uses = Counter(self._last(start, end))
        if all(uses[name] == count for name, count in last_uses.items()):
            return set()
        return {name for name, count in uses.items() if count > max(1, last_uses[name])}

    def _latest_in_stream(self, skip: int, end: int) -> int | None:
        """Return the latest summand of `skip` that is an ancestor of `end`."""
        latest: int | None = None
        for index, _, _ in self._back([skip], _STREAM):
            if self._leads_to(index, end) and (latest is None or index > latest):
                latest = index
        return latest

    def _leads_to(self, early: int, late: int) -> bool:
        """Return whether a step that may be a stream is an ancestor of another one.

        A stream depends on the inputs, or starts at a learned table, such as queries or latents.
        """
        step = self.steps[early]
        is_stream = step.fed or any(use.kind == "table" for _, use in step.uses)
        return is_stream and self._between(early, early, late)

    def _between(self, start: int, index: int, end: int) -> bool:
        if end == start:
            return False
        before_end = self.steps[end].ancestors >> index & 1
        behind_start = self.steps[index].ancestors >> start & 1
        return bool(before_end and behind_start)

    def _inside(self, start: int, end: int) -> list[str]:
        """Return the parameters that are used between two steps, once for each use."""
        names: list[str] = []
        for index in self._steps_between(start, end):
            names += [name for name, _ in self.steps[index].uses]
        return names

    def _steps_between(self, start: int, end: int) -> list[int]:
        steps: list[int] = []
        for index in range(start + 1, end + 1):
            if self._between(start, index, end):
                steps.append(index)
        return steps

    def _last(self, start: int, end: int) -> list[str]:
        """Return parameters at the end of a branch, once for each use: a factor in all of them is a
        factor of the branch.

        There are none if a summand of the branch is not linear in parameters.
        """
        linear: set[int] = set()
        inside = set(self._steps_between(start, end))
        for index in sorted(inside):
            if self._is_linear(self.steps[index], inside, linear):
                linear.add(index)
        if end not in linear:
            return []
        names: list[str] = []
        found = {end}
        ahead = [end]
        while ahead:
            step = self.steps[ahead.pop()]
            if step.kind in _MAKERS or step.kind == "shift":
                names += [name for name, use in step.uses if use.kind != "other"]
            if step.kind in _MAKERS:
                continue
            parents = [index for index in step.parents if index in linear and index not in found]
            if step.kind in _PRODUCTS:
                parents = parents[-1:]  # a factor in each would count twice
            found.update(parents)
            ahead += parents
        return names

    def _is_linear(self, step: Step, inside: set[int], linear: set[int]) -> bool:
        """Return whether a step of a branch is linear in parameters; `linear` has earlier ones."""
        if step.kind in _MAKERS:
            return any(use.kind != "other" for _, use in step.uses)
        parents = [index for index in step.parents if index in inside]
        if step.kind in _PRODUCTS:
            return any(index in linear for index in parents)
        if step.kind in _PASSED or step.kind == "gain":
            return all(index in linear for index in parents)
        return False

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

    def data_readers(self) -> frozenset[str]:
        """Return the matrices that read the inputs of the model in all their uses.

        No other matrix or table comes before them. Of a recurrent layer that torch runs as one
        operation, only the first input matrix can be one.
        """
        makers = 0  # bit mask of steps
        readers: set[str] = set()
        others: set[str] = set()
        for index, step in enumerate(self.steps):
            matrices = [name for name, use in step.uses if use.kind in ("matrix", "convolution")]
            reads_data = step.fed and not step.ancestors & makers
            for name in matrices:
                attribute = name.rpartition(".")[2]
                is_inner = step.kind == "stop" and not attribute.startswith(FIRST_INPUT)
                if reads_data and not is_inner:
                    readers.add(name)
                else:
                    others.add(name)
            if any(use.kind in _MIXING for _, use in step.uses):
                makers |= 1 << index
        return frozenset(readers - others)

    def makers_of(self, values: Iterable[Value]) -> frozenset[str]:
        """Return the matrices, convolutions and tables that values are linear in."""
        starts = [value.step for value in values if value.step is not None]
        names: set[str] = set()
        for _, maker, _ in self._back(starts, _PASSED):
            names.update(name for name, use in maker.uses if use.kind in _USES)
        return frozenset(names)

    def readouts(self, values: Iterable[Value]) -> frozenset[str]:
        """Return the makers of values that no other matrix, convolution or table reads."""
        starts = [value.step for value in values if value.step is not None]
        names: set[str] = set()
        for index, maker, _ in self._back(starts, _PASSED):
            if not self._read >> index & 1:
                names.update(name for name, use in maker.uses if use.kind in _USES)
        return frozenset(names)

    @cached_property
    def _read(self) -> int:
        """Bit mask of the steps that a matrix, convolution or table reads."""
        read = 0
        for index, step in enumerate(self.steps):
            if any(use.kind in _USES for _, use in step.uses):
                read |= step.ancestors & ~(1 << index)
        return read

    def last_makers(self, values: Iterable[Value]) -> frozenset[str]:
        """Return the matrices, convolutions and tables from which values are computed without
        another one, also by nonlinear functions."""
        names: set[str] = set()
        for index in self._last_steps(values):
            names.update(self._made(index))
        return frozenset(names)

    def output_makers(self, values: Iterable[Value]) -> frozenset[str]:
        """Return the last makers of values that no other matrix, convolution or table reads.

        A matrix that is used twice may be read in one place and make the output in the other.
        """
        names: set[str] = set()
        for index in self._last_steps(values):
            if not self._read >> index & 1:
                names.update(self._made(index))
        for index in range(len(self.steps)):
            if self._read >> index & 1:
                names.difference_update(self._made(index, matrices_only=True))
        return frozenset(names)

    def _last_steps(self, values: Iterable[Value]) -> set[int]:
        """Return the nearest steps with a matrix, convolution or table before values."""
        last: set[int] = set()
        visited: set[int] = set()
        ahead = [value.step for value in values if value.step is not None]
        while ahead:
            index = ahead.pop()
            if index in visited:
                continue
            visited.add(index)
            if self._made(index):
                last.add(index)
            else:
                ahead += self.steps[index].parents
        return last

    def _made(self, index: int, matrices_only: bool = False) -> list[str]:
        """Return the tensors that a step uses as a matrix, convolution or table."""
        made: list[str] = []
        for name, use in self.steps[index].uses:
            if use.kind in _USES and not (matrices_only and use.kind == "lookup"):
                made.append(name)
        return made

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
