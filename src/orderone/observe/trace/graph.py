"""What the forward code does with every parameter: one forward pass, watched operation by
operation.

`trace` runs the model once (eval mode, no gradients; buffers, modes and random state are left as
they were) under a dispatch mode that sees every aten operation, whatever Python wrote it. Each
operation becomes a step of a graph, and every tensor stands at one of four levels:

    CONSTANT     made from numbers and buffers alone
    DATA         made from the inputs, no parameter yet
    PARAMETER    a parameter, a view or a copy of one, or what is computed from parameters alone (1
                 + weight)
    ACTIVATION   what came out of a parameter's use

A use is where a PARAMETER meets DATA or an ACTIVATION. Which of its axes are summed over is told by
strides: a view moves through the memory of its owner, and the stride of the contracted dimension
says along which of the owner's dimensions. Constants, attention scores and residual branches are
then read off the graph by walking along the steps in which a value is linear. On the meta device a
constant held in a tensor cannot be read: its value is None.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orderone.observe.trace.facts import Branch, Constant, Scores, Trace
from orderone.observe.trace.recorder import Recorder, WholeAttention
from orderone.observe.trace.values import Step
from orderone.seeding import seeded
from orderone.torch_compat import buffer_registry

Inputs = Mapping[str, object] | Sequence[object] | Tensor
_PASSED = frozenset({"pass", "add", "shift", "constant", "weighting"})
_STREAM = frozenset({"pass", "add", "shift", "constant"})
_USES = ("matrix", "convolution", "lookup")
_MAKERS = frozenset({"matrix", "convolution", "lookup", "norm"})


def trace(model: nn.Module, inputs: Inputs) -> Trace:
    """Return what one forward pass of `model` on `inputs` (keywords, positions, or one tensor) does
    with the parameters."""
    args, kwargs = call_with(inputs)
    recorder = Recorder(dict(model.named_parameters()), (args, kwargs))
    with undisturbed(model), torch.no_grad(), recorder, WholeAttention(recorder):
        model(*args, **kwargs)
    graph = Graph(recorder.steps)
    scores, score_sums = graph.scores()
    return Trace(
        uses={name: tuple(uses) for name, uses in recorder.uses.items()},
        constants=(*recorder.scaled_parameters, *graph.constants()),
        scores=scores,
        branches=graph.branches(score_sums),
        carriers=graph.carriers(),
    )


def call_with(inputs: Inputs) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the positional and the keyword arguments of a call on `inputs`."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return ((), dict(inputs))
    return (tuple(inputs), {})


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode, with the attention fast path off (it hides its operations); afterwards
    everything is as it was."""
    before: list[tuple[nn.Module, bool, dict[str, Tensor | None]]] = []
    for module in model.modules():
        before.append((module, module.training, dict(buffer_registry(module))))
    contents = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    fastpath = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        model.eval()
        with seeded(0, devices):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for module, training, buffers in before:
            module.training = training
            buffer_registry(module).clear()
            buffer_registry(module).update(buffers)
        with torch.no_grad():
            for buffer, content in contents:
                buffer.copy_(content)


class Graph:
    """Reads the recorded steps by walking along them."""

    def __init__(self, steps: Sequence[Step]):
        self.steps = steps
        self.children: list[list[int]] = [[] for _ in steps]
        for index, step in enumerate(steps):
            for parent in step.parents:
                self.children[parent].append(index)

    def _back(
        self, starts: Iterable[int], passed: frozenset[str]
    ) -> Iterator[tuple[int, Step, float | None]]:
        """Steps from `starts` backwards through the kinds in `passed`, each with the constant
        factor up to it."""
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

    def constants(self) -> Iterator[Constant]:
        for index, step in enumerate(self.steps):
            if step.kind == "constant":
                yield self._constant(index, step)

    def _constant(self, index: int, step: Step) -> Constant:
        makers: list[str] = []
        kinds: list[str] = []
        made_at: list[int] = []
        for maker_index, maker, _ in self._back(step.parents, _PASSED):
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
        return Constant(step.factor, _once(makers), _once(takers), at, _once(kinds))

    def _takers(self, start: int) -> list[tuple[int, str]]:
        """Return the parameters that `start` goes into, each with the step of that use."""
        takers: list[tuple[int, str]] = []
        visited = {start}
        stack = [start]
        while stack:
            for child in self.children[stack.pop()]:
                step = self.steps[child]
                for name, use in step.uses:
                    if use.kind in _USES:
                        takers.append((child, name))
                if step.kind in _PASSED and child not in visited:
                    visited.add(child)
                    stack.append(child)
        return takers

    def scores(self) -> tuple[tuple[Scores, ...], set[int]]:
        """Return the attention scores, and the additions among them: of masks and biases, never
        residual."""
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
        """Return the parameters that made queries or keys, the constant factor since, and whether
        they come out of a norm."""
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
        branches: list[Branch] = []
        for index, step in enumerate(self.steps):
            if step.kind != "add" or len(step.parents) != 2 or index in score_sums:
                continue
            branch = self._branch(step)
            if branch is not None:
                branches.append(branch)
        return tuple(branches)

    def _branch(self, step: Step) -> Branch | None:
        """Return the branch that the addition `step` closes, if it does.

        Where x is no ancestor of f(x) itself, what it was summed up from may be: (x + attention(x))
        + mlp(x).
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
        """Return the latest step that `skip` was summed up from and that leads to `end`."""
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
        """Return, for matrices that a norm with a gain feeds, the parameters that a constant in
        front of the matrix could be moved into."""
        carriers: dict[str, tuple[str, ...]] = {}
        for step in self.steps:
            if step.kind == "matrix" and len(step.parents) == 1:
                names = self._norm_before(step)
            else:
                names = ()
            for name, use in step.uses:
                if use.kind == "matrix":
                    is_the_same = carriers.get(name, names) == names
                    carriers[name] = names if is_the_same else ()
        return {name: names for name, names in carriers.items() if names}

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
