"""Check of a captured or compiled step: it makes the step that the stack itself makes.

`verify` compares the stack with stand-alone runs operation by operation. A CUDA graph or a compiled
program is made afterwards from the same code, and may repeat a value that should change, or round
otherwise. So its first steps are made by the stack as well, from the same state. Losses and updates
must be as near as those of a stack whose parameters differ by one unit of rounding.

    loss      |a - b| / |a|
    update    |dp - dp'| / |dp|  and  ||dp| - |dp'|| / |dp|, Euclidean norms of each parameter

The second form sees a wrong learning rate where the signs of Adam's update are rounding. A program
that fails is not used. Models that draw random numbers are not compared: a graph draws other ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orderone.torch_compat import tree_map
from orderone.training.source import Batch
from orderone.training.stacked.compiled_step import FixedStep
from orderone.training.stacked.proof import HALF, ROUNDING
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.ways import nudged

CHECKED = 2  # steps
NEAR = 2.0  # times the distance of a stack that rounds otherwise, in half precision
NUDGES = 2  # steps of a stack whose parameters were rounded otherwise


@dataclass(frozen=True)
class _Made:
    """Results of a step: losses (K,), and changes of all parameters, (K, ...) by name."""

    losses: Tensor
    changes: Mapping[str, Tensor]
    rounding: Mapping[str, Tensor]  # one unit of rounding of each parameter, (K,)


class ProgramCheck:
    """Check of the first steps of a program; `failure` says what is wrong with it."""

    def __init__(self, stack: Stack, program: FixedStep):
        self.stack = stack
        self.program = program
        self.left: int = CHECKED
        self.failure: str | None = None

    def step(self, batches: Sequence[Batch], factor: float) -> Tensor:
        """Make a step by the program and compare it; if it fails, make it by the stack."""
        self.left -= 1
        before = {name: x.detach().clone() for name, x in self.stack.state().items()}
        try:
            expected = self._by_stack(before, batches, factor)
            self.stack.load(before)
            found = self._made(before, self.program(*tree_map(_copy, batches), factor=factor))
            if self._near(expected, found, ()):
                return found.losses
            after = {name: x.detach().clone() for name, x in self.stack.state().items()}
            others = [self._rounded_otherwise(before, k, batches, factor) for k in range(NUDGES)]
        except torch.OutOfMemoryError:
            self.left = 0  # the check needs more memory than the training
            torch.cuda.empty_cache()
            self.stack.load(before)
            return self.program(*batches, factor=factor)
        if self._near(expected, found, others):
            self.stack.load(after)
            return found.losses
        apart = float(_relative(expected.losses, found.losses).max())
        self.failure = (
            "its first steps differ from those of the uncompiled stack (losses by up to"
            f" {apart:.1g} of their size)"
        )
        self.stack.load(before)
        return self.stack.step(*batches, factor=factor)

    def _by_stack(
        self, before: Mapping[str, Tensor], batches: Sequence[Batch], factor: float
    ) -> _Made:
        return self._made(before, self.stack.step(*tree_map(_copy, batches), factor=factor))

    def _made(self, before: Mapping[str, Tensor], losses: Tensor) -> _Made:
        changes: dict[str, Tensor] = {}
        rounding: dict[str, Tensor] = {}
        for name, p in self.stack.parameters.items():
            changes[name] = p.detach() - before[name]
            rounding[name] = torch.finfo(p.dtype).eps * _norm(p.detach())
        return _Made(losses.detach().clone(), changes, rounding)

    def _rounded_otherwise(
        self, before: Mapping[str, Tensor], number: int, batches: Sequence[Batch], factor: float
    ) -> _Made:
        """Make the step from parameters that differ by one unit in the last place."""
        generator = torch.Generator().manual_seed(number)
        state = dict(before)
        for name in self.stack.parameters:
            eps = max(torch.finfo(state[name].dtype).eps, self._eps)
            state[name] = nudged(state[name], generator, eps)
        self.stack.load(state)
        return self._by_stack(state, batches, factor)

    @property
    def _eps(self) -> float:
        """Unit of rounding of the passes."""
        half = self.stack.program.precision
        if half is not None:
            return torch.finfo(half).eps
        return max(torch.finfo(p.dtype).eps for p in self.stack.parameters.values())

    def _near(self, expected: _Made, found: _Made, others: Sequence[_Made]) -> bool:
        """Return whether everything is within rounding, or within that of `others`."""
        limit = ROUNDING
        if self._eps >= min(torch.finfo(dtype).eps for dtype in HALF):
            limit = NEAR  # one unit in the parameters is about what other kernels change
        apart = _distances(expected, found)
        unit = _units(expected, self._eps)
        for other in others:
            unit = torch.maximum(unit, _distances(expected, other))
        return bool((apart <= limit * unit).all())


def _distances(a: _Made, b: _Made) -> Tensor:
    """Return all distances of each member: its loss, then two of each parameter."""
    rows = [_relative(a.losses, b.losses)]
    for name, change in a.changes.items():
        other = b.changes[name]
        size = _norm(change)
        distance = _norm(change - other) / size
        calm = (size > 0) & size.isfinite()  # a member that has diverged is not compared
        rows.append(torch.where(calm, distance, 0.0))
        rows.append(torch.where(calm, _relative(size, _norm(other)), 0.0))
    return torch.stack(rows)


def _units(made: _Made, eps: float) -> Tensor:
    """Return the unit of rounding of every number of `_distances`."""
    rows = [torch.full_like(made.losses, eps, dtype=torch.float64)]
    for name, change in made.changes.items():
        unit = eps + made.rounding[name] / _norm(change)
        rows += [unit, unit]
    return torch.stack(rows)


def _relative(a: Tensor, b: Tensor) -> Tensor:
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().double() / a.abs().double())


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.reshape(len(x), -1).double(), dim=1)


def _copy(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
