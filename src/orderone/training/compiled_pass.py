"""Compiled passes of a single model, for trainings that cannot be stacked or captured in a graph.

torch.compile can divide a model where it decides on values, which a CUDA graph cannot. Whether to
compile is decided once for all trainings of an architecture, by passes of another model:

1. Count the operations of a pass. If compiling would cost more than it saves, do not compile.
2. Compile within a time limit, and compare loss and gradients with those of an uncompiled pass.
   They must agree within rounding, or as well as those of parameters that are rounded otherwise.
3. Time both. If the compiled pass is not faster, do not use it.

On a CPU, compiled passes of one small model are 0.6 to 0.9 times as fast as uncompiled ones, and
the compiler takes a minute (`benchmarks/compiled_alone.py`). On a GPU they have not been measured.
So nothing is compiled unless the user asks for it.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from orderone.core.time_limit import TimeLimitReached, time_limit
from orderone.seeding import AllGenerators, preserved
from orderone.torch_compat import (
    COMPILER_LOGGER,
    OpOverload,
    TorchDispatchMode,
    compiler_options,
    number_of_graphs,
    tree_leaves,
    tree_map,
)
from orderone.training.source import Batch, moved
from orderone.training.stacked.clock import seconds_of_work
from orderone.training.stacked.compile_pays import (
    SECONDS_PER_OPERATION,
    Estimate,
    bandwidth,
    is_fused,
)
from orderone.training.stacked.compiling import LIMIT
from orderone.training.stacked.proof import ROUNDING
from orderone.training.stacked.ways import nudged
from orderone.training.step import Step

LAUNCH = 5e-6  # seconds; a pass of small kernels on a GPU takes this long per operation
NEAR = 2.0  # times the distance of parameters that are rounded otherwise
TIMED = 2  # passes
SETTLING = 3  # passes after which nothing may be compiled any more
CHANGE = 0.01  # of the parameters, between these passes
AGAIN = 2.0  # seconds; a first pass that takes longer than this and AGAIN_FACTOR passes compiled
AGAIN_FACTOR = 20.0


@dataclass(frozen=True)
class Decision:
    """Whether the passes of an architecture are compiled, and why."""

    compiles: bool
    reason: str
    seconds: float = 0.0  # of a compiled pass


@dataclass
class PassCompiler:
    """Decides at the first pass of a training whether its passes are compiled.

    `other` makes the step of another model of the same trial. `decisions` are those of all
    architectures of a study, by `program`. `passes` are those of all trainings that would use the
    compiled program.
    """

    program: str
    passes: int
    asked: bool  # by the user
    other: Callable[[], Step]
    decisions: dict[str, Decision]
    _forward: nn.Module | None = None
    _begun: bool = False

    @property
    def decision(self) -> Decision | None:
        return self.decisions.get(self.program)

    @property
    def compiles(self) -> bool:
        """Whether the passes of this training are compiled."""
        return self._forward is not None

    def add_gradients(self, step: Step, batch: Batch) -> Tensor:
        """Add the gradients of a batch; return its loss."""
        if self._begun:
            return _add_gradients(step, self._forward, batch)
        self._begun = True
        is_new = self.decision is None
        if is_new:
            with preserved():
                self.decisions[self.program] = decide(self.other(), batch, self.passes, self.asked)
        decision = self.decisions[self.program]
        if not decision.compiles:
            return _add_gradients(step, None, batch)
        self._forward = compiled_forward(step.forward)
        started = time.monotonic()
        loss = _add_gradients(step, self._forward, batch)
        spent = time.monotonic() - started
        if spent > AGAIN + AGAIN_FACTOR * decision.seconds and not is_new:
            reason = f"{decision.reason}; later models not, since each would be compiled again"
            self.decisions[self.program] = Decision(False, reason)
        return loss


@dataclass(frozen=True)
class CompilableStep(Step):
    """Step whose passes are compiled if that is worth it."""

    compiler: PassCompiler | None = None

    def add_gradients(self, batch: Batch) -> Tensor:
        if self.compiler is None:
            return super().add_gradients(batch)
        return self.compiler.add_gradients(self, batch)


def _add_gradients(step: Step, forward: nn.Module | None, batch: Batch) -> Tensor:
    if forward is None:
        return Step.add_gradients(step, batch)
    with _quiet_compiler():
        return Step.add_gradients(replace(step, forward=forward), batch)


@contextmanager
def _quiet_compiler() -> Iterator[None]:
    """Suppress warnings of the compiler: the user cannot change what it does."""
    logger = logging.getLogger(COMPILER_LOGGER)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.")
            yield
    finally:
        logger.setLevel(level)


def compiled_forward(module: nn.Module) -> nn.Module:
    """Return the compiled module; it draws the random numbers of the module itself.

    Shapes and numbers that change become symbolic: a model that decides on values would otherwise
    be compiled for each value.
    """
    options = {**compiler_options(), "fallback_random": True}
    wrapped: Any = torch.compile(module, options=options)
    return wrapped


# --- the decision ---------------------------------------------------------------------------------


def decide(step: Step, batch: Batch, passes: int, asked: bool) -> Decision:
    """Return whether to compile the passes of models like that of `step`, which is used up."""
    trial = _Trial(step, moved(batch, step.world.device, step.settings.precision))
    guess = trial.estimate(passes)
    if not asked and not guess.pays:
        return Decision(False, f"not compiled ({guess})")
    if not trial.repeats():
        reason = "not compiled: passes differ from one to the next, so they cannot be compared"
        return Decision(False, reason)
    started = time.monotonic()
    compiled = compiled_forward(step.forward)
    try:
        with time_limit(LIMIT):
            steady = trial.settles(compiled)
    except TimeLimitReached:
        return Decision(False, f"not compiled: it needs more than {LIMIT:g} seconds")
    except Exception as error:  # the compiler may raise anything
        cause = error.__cause__ or error
        first_line = str(cause).strip().partition("\n")[0]
        reason = f"not compiled, torch.compile failed: {type(cause).__name__}: {first_line}"
        return Decision(False, reason)
    spent = time.monotonic() - started
    if not steady:
        return Decision(False, "not compiled: it would be compiled again and again")
    if not trial.agrees(compiled):
        return Decision(False, "not compiled: compiled passes give other losses or gradients")
    before, after = trial.seconds(None), trial.seconds(compiled)
    times = f"{1e3 * after:.3g} ms instead of {1e3 * before:.3g} ms"
    if after >= before:
        return Decision(False, f"not compiled: a compiled pass would take {times}")
    return Decision(True, f"compiled in {spent:.0f} s: a pass takes {times}", after)


@dataclass
class _Trial:
    """Passes of a model that is not trained, each from the same state."""

    step: Step
    batch: Batch
    buffers: dict[str, Tensor] = field(init=False)
    generators: AllGenerators = field(init=False)

    def __post_init__(self) -> None:
        named = self.step.module.named_buffers()
        self.buffers = {name: x.detach().clone() for name, x in named}
        self.generators = AllGenerators.now()

    def run(self, forward: nn.Module | None) -> dict[str, Tensor]:
        """Return loss and gradients of a pass."""
        module = self.step.module
        with torch.no_grad():
            for name, x in module.named_buffers():
                x.copy_(self.buffers[name])
        for p in module.parameters():
            p.grad = None
        self.generators.restore()
        found = {"": _add_gradients(self.step, forward, tree_map(_copy, self.batch))}
        for name, p in module.named_parameters():
            if p.grad is not None:
                found[name] = p.grad
        return found

    def estimate(self, passes: int) -> Estimate:
        counter = _Counter(self.step.world.device)
        with counter:
            self.run(None)
        return Estimate(SECONDS_PER_OPERATION * counter.operations, passes * counter.saved, passes)

    def seconds(self, forward: nn.Module | None) -> float:
        """Return the seconds of the fastest pass."""
        seconds: list[float] = []
        for _ in range(1 + TIMED):  # the first one fills caches
            started = self._clock()
            self.run(forward)
            seconds.append(self._clock() - started)
        return min(seconds[1:])

    def _clock(self) -> float:
        if self.step.world.device.type == "cpu":
            return seconds_of_work()
        torch.cuda.synchronize(self.step.world.device)
        return time.perf_counter()

    def repeats(self) -> bool:
        """Return whether passes from the same state agree, but for rounding."""
        first = self.run(None)
        return _near(first, self.run(None), ROUNDING * self._smallest_eps())

    def settles(self, compiled: nn.Module) -> bool:
        """Compile the passes; return whether other values of the parameters need no compilation."""
        self.run(compiled)
        graphs = 0
        for _ in range(SETTLING):
            self._nudge(CHANGE)
            graphs = number_of_graphs()
            self.run(compiled)
        return number_of_graphs() == graphs

    def agrees(self, compiled: nn.Module) -> bool:
        """Return whether a compiled pass gives the loss and gradients of an uncompiled one."""
        expected = self.run(None)
        found = self.run(compiled)
        eps = self._eps()
        if eps == self._smallest_eps() and _near(expected, found, ROUNDING * eps):
            return True
        self._nudge(eps)
        return _near(expected, found, NEAR * eps, NEAR, self.run(None))

    def _smallest_eps(self) -> float:
        return min(torch.finfo(p.dtype).eps for p in self.step.module.parameters())

    def _eps(self) -> float:
        """Return the unit of rounding of the passes."""
        half = self.step.settings.half
        if half is not None:
            return torch.finfo(half).eps
        return max(torch.finfo(p.dtype).eps for p in self.step.module.parameters())

    @torch.no_grad()
    def _nudge(self, eps: float) -> None:
        """Change the parameters by one unit of rounding."""
        generator = torch.Generator().manual_seed(0)
        for p in self.step.module.parameters():
            p.copy_(nudged(p, generator, eps))


class _Counter(TorchDispatchMode):
    """Counts operations, and the seconds that a compiler saves by fusing some of them."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.operations: int = 0
        self.saved: float = 0.0
        self._bandwidth: float | None = None
        if device.type == "cuda":
            self._bandwidth = bandwidth(device)

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        if self._bandwidth is not None and is_fused(func):
            tensors = [x for x in tree_leaves((args, result)) if isinstance(x, Tensor)]
            read_and_written = sum(x.numel() * x.dtype.itemsize for x in tensors)
            self.saved += max(LAUNCH, read_and_written / self._bandwidth)
        return result


def _near(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    relative: float,
    times: float = 0.0,
    other: Mapping[str, Tensor] | None = None,
) -> bool:
    """Return whether tensors differ by no more than a share of their norm.

    They may also differ by a unit of rounding of the largest one, or `times` as much as `other`.
    """
    if found.keys() != expected.keys():
        return False
    largest = max((_norm(x) for name, x in expected.items() if name), default=0.0)
    for name, x in expected.items():
        allowed = relative * _norm(x)
        if name:  # a gradient may be zero but for rounding
            allowed = max(allowed, relative / ROUNDING * largest)
        if other is not None and name in other:
            allowed = max(allowed, times * _apart(x, other[name]))
        if not _apart(x, found[name]) <= allowed:
            return False
    return True


def _apart(a: Tensor, b: Tensor) -> float:
    return _norm(a.double() - b.double())


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))


def _copy(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
