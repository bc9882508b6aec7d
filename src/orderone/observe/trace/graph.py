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
from typing import Any

import torch
from torch import Tensor, nn

from orderone.observe.trace.facts import Branch, Constant, Scores, Trace
from orderone.observe.trace.recorder import Recorder, WholeAttention
from orderone.observe.trace.values import Step
from orderone.seeding import seeded
from orderone.torch_compat import buffer_registry

_PASSED = frozenset({"pass", "add", "shift", "constant", "weighting"})
_STREAM = frozenset({"pass", "add", "shift", "constant"})
_USES = ("matrix", "convolution", "lookup")
_MAKERS = frozenset({"matrix", "convolution", "lookup", "norm"})


def trace(model: nn.Module, inputs: Mapping[str, Any] | Sequence[Any] | Tensor) -> Trace:
    """What one forward pass of `model` on `inputs` (keywords, positions, or one tensor) does with
    the parameters."""
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


def call_with(
    inputs: Mapping[str, Any] | Sequence[Any] | Tensor,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return ((), dict(inputs))
    return (tuple(inputs), {})


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode, and the attention fast path off (it hides its operations); afterwards everything
    is as it was."""
    before = [
        (module, module.training, dict(buffer_registry(module))) for module in model.modules()
    ]
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
        seen: set[int] = set()
        stack: list[tuple[int, float | None]] = [(start, 1.0) for start in starts]
        while stack:
            index, factor = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            step = self.steps[index]
            yield index, step, factor
            if step.kind in passed:
                stack += [(parent, _product(factor, step.factor)) for parent in step.parents]

    def constants(self) -> Iterator[Constant]:
        for index, step in enumerate(self.steps):
            if step.kind == "constant":
                behind = [
                    (at, *use)
                    for at, made, _ in self._back(step.parents, _PASSED)
                    for use in made.uses
                ]
                after = _once(name for _, name, _ in behind)
                kinds = _once(use.kind for *_, use in behind)
                taken = self._takers(index)
                at = tuple(at for at, _, use in behind if use.kind in _USES) or tuple(
                    at for at, _ in taken
                )
                yield Constant(step.factor, after, _once(name for _, name in taken), at, kinds)

    def _takers(self, start: int) -> list[tuple[int, str]]:
        names: list[tuple[int, str]] = []
        seen = {start}
        stack = [start]
        while stack:
            for child in self.children[stack.pop()]:
                step = self.steps[child]
                names += [(child, name) for name, use in step.uses if use.kind in _USES]
                if step.kind in _PASSED and child not in seen:
                    seen.add(child)
                    stack.append(child)
        return names

    def scores(self) -> tuple[tuple[Scores, ...], set[int]]:
        """The attention scores, and the additions among them: of masks and biases, never
        residual."""
        found: list[Scores] = []
        sums: set[int] = set()
        for step in self.steps:
            if step.kind == "attention" and step.product:
                found.append(self._scores(step.product, step.factor))
            if step.kind == "softmax":
                behind = list(self._back(step.parents, _PASSED | {"softcap"}))
                products = [
                    (made.product, factor)
                    for _, made, factor in behind
                    if made.kind == "contraction"
                ]
                found += [self._scores(product, factor) for product, factor in products if product]
                sums |= {index for index, made, _ in behind if made.kind == "add" and products}
        return tuple(found), sums

    def _scores(self, product: tuple[int, int, int], scale: float | None) -> Scores:
        queries, keys, head_size = product
        made = [self._side(step) for step in (queries, keys)]
        for _, factor, _ in made:
            scale = _product(scale, factor)
        return Scores(
            made[0][0], made[1][0], head_size, scale, all(normalized for _, _, normalized in made)
        )

    def _side(self, start: int) -> tuple[tuple[str, ...], float | None, bool]:
        """Of queries or keys: who made them, the constant factor since, and whether they come out
        of a norm."""
        behind = list(self._back([start], _PASSED | {"gain", "normalized"}))
        makers = [
            (step, factor)
            for _, step, factor in behind
            if step.kind in _MAKERS or step.kind == "normalized"
        ]
        names = [
            n for step, _ in makers for n, use in step.uses if use.kind not in ("shift", "other")
        ]
        normalized = any(step.kind in ("norm", "normalized") for step, _ in makers)
        return _once(names), makers[0][1] if makers else 1.0, normalized

    def branches(self, score_sums: set[int]) -> tuple[Branch, ...]:
        sums = [
            s
            for i, s in enumerate(self.steps)
            if s.kind == "add" and len(s.parents) == 2 and i not in score_sums
        ]
        return tuple(branch for step in sums for branch in self._branch(step))

    def _branch(self, step: Step) -> list[Branch]:
        """The branch that the addition `step` closes, if it does: at most one.

        Where x is no ancestor of f(x) itself, what it was summed up from may be: (x + attention(x))
        + mlp(x).
        """
        first, second = step.parents
        directions = ((first, second), (second, first))
        pairs = [(skip, branch) for skip, branch in directions if self._leads_to(skip, branch)]
        for skip, branch in directions if not pairs else ():
            stream = [
                index
                for index, _, _ in self._back([skip], _STREAM)
                if self._leads_to(index, branch)
            ]
            pairs += [(max(stream), branch)] if stream else []
        found = [Branch(self._last(*pair), self._inside(*pair)) for pair in pairs]
        found = [branch for branch in found if branch.inside]
        return found if len(found) == 1 else []

    def _leads_to(self, early: int, late: int) -> bool:
        return self.steps[early].fed and self._between(early, early, late)

    def _between(self, start: int, index: int, end: int) -> bool:
        ancestors = self.steps[end].ancestors, self.steps[index].ancestors
        return end != start and bool(ancestors[0] >> index & 1) and bool(ancestors[1] >> start & 1)

    def _inside(self, start: int, end: int) -> tuple[str, ...]:
        steps = [self.steps[i] for i in range(start + 1, end + 1) if self._between(start, i, end)]
        return _once(name for step in steps for name, _ in step.uses)

    def _last(self, start: int, end: int) -> tuple[str, ...]:
        behind = self._back([end], _PASSED | {"gain", "product", "contraction", "attention"})
        ends = [step for i, step, _ in behind if i > start and self._between(start, i, end)]
        makers = [step for step in ends if step.kind in _MAKERS or step.kind == "shift"]
        return _once(name for step in makers for name, use in step.uses if use.kind != "other")

    def carriers(self) -> dict[str, tuple[str, ...]]:
        """Of matrices that a norm with a gain feeds: what a constant in front of the matrix could
        be moved into."""
        found: dict[str, tuple[str, ...]] = {}
        for step in self.steps:
            if step.kind == "matrix" and len(step.parents) == 1:
                names = self._norm_before(step)
            else:
                names = ()
            for name, use in step.uses:
                if use.kind == "matrix":
                    found[name] = names if found.get(name, names) == names else ()
        return {name: names for name, names in found.items() if names}

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
