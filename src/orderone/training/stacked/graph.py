"""Training step captured once as a CUDA graph, and replayed.

Small members spend most of their time on kernel launches, which a graph avoids. A graph reads and
writes the memory it was captured with: new batches are copied into the memory of the first one.
Everything that a step changes (parameters, optimizer states, step counts) is in tensors, so each
replay continues from the last one. A graph does not own this memory: whatever it reads has to live
as long as the graph.

The graph holds the traced operations of the passes (`traced.py`) where they can be traced, and
otherwise what the model itself does. If that is asked for, or if it saves time
(`compile_pays.py`), the whole step is compiled (`traced_step.py`). A step with several batches, or
one that cannot be traced as a whole, has compiled passes and compiled updates.
"""

import time
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.stacked.alike import description
from orderone.training.stacked.capturing import captured_by
from orderone.training.stacked.compile_pays import estimate
from orderone.training.stacked.compiled_step import FixedStep, must_not_change, shapes
from orderone.training.stacked.errors import NotCapturable, NotCompiled
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.traced import TracedPass
from orderone.training.stacked.traced_step import TracedStep

Traced = TypeVar("Traced")

WARM_UPS = 3  # steps before a capture, for allocation, autotuning and compilation


class CapturedStep(FixedStep):
    """Captured `Stack.step`, called like it; the next call overwrites the returned tensor.

    Args:
        stack: The stack. If it was made with `compile=True`, its passes are compiled.
        *batches: Batches of one step, with the shapes of all others.
        steps: Number of steps to come; passes and updates are then compiled if that saves time.
    """

    def __init__(self, stack: Stack, *batches: Batch, steps: int = 0):
        super().__init__(stack, tree_map(_copy, batches))
        self.steps = steps
        before = {name: x.detach().clone() for name, x in stack.state().items()}
        model_before = description(stack.program.model)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), stack.optimizer.elementary_updates():
            for _ in range(WARM_UPS):
                stack.step(*self.batches)
        torch.cuda.current_stream().wait_stream(aside)
        try:
            must_not_change(model_before, stack)
        except NotCapturable:
            stack.load(before)
            raise
        self.traced: bool = False
        self.captured_function: Callable[[], Tensor]  # owns the constants that the graph reads
        self.losses: Tensor
        self.graph: torch.cuda.CUDAGraph
        try:
            with torch.cuda.stream(aside):
                ways = self._ways()
            torch.cuda.current_stream().wait_stream(aside)
            for way in ways:
                try:
                    self._capture(aside, way)
                    self.traced = True
                    return
                except NotCapturable:
                    self.compiled = False  # the next way may be captured
            self._capture(aside, lambda: stack.step(*self.batches))
        finally:
            stack.load(before)

    def _capture(self, aside: torch.cuda.Stream, step: Callable[[], Tensor]) -> None:
        """Capture a step, on a separate stream.

        Graphs captured on the same stream share scratch memory of cuBLAS, and could not be replayed
        at the same time.
        """
        self.graph = torch.cuda.CUDAGraph()
        self.captured_function = step
        try:
            with captured_by(self.graph, aside):
                self.losses = step()
        except (RuntimeError, InputError) as error:
            # the same step worked without a graph just before
            raise NotCapturable(f"a CUDA graph cannot hold this step: {error}") from error

    def _ways(self) -> list[Callable[[], Tensor]]:
        """Return traced forms of the step to capture, the best first."""
        stack = self.stack
        passes = self._trace(self._traced_pass)
        if passes is None:
            return []
        guess = estimate(passes.operations.graph, self.steps, stack.device)
        if self.steps:
            choice = "compiled" if guess.pays else "not compiled"
            self.compile_choice: str | None = f"{choice} ({guess})"
        if stack.compile or guess.pays:
            started = time.monotonic()
            try:
                step = self._compiled(passes)
                self.compiled: bool = True
                self.compile_seconds: float = time.monotonic() - started
                return [step, lambda: stack.step(*self.batches, run=passes)]
            except NotCompiled as error:
                self.compile_error: str | None = str(error)
        return [lambda: stack.step(*self.batches, run=passes)]

    def _compiled(self, passes: TracedPass) -> Callable[[], Tensor]:
        """Return the compiled step; if it cannot be one program, compile passes and updates."""
        stack = self.stack
        batch = self.batches[0]
        whole = None
        if len(self.batches) == 1:
            whole = self._trace(lambda as_captured: TracedStep(stack, batch, as_captured))
        if whole is not None:
            whole.compile(batch)
            return lambda: whole(batch)
        passes.compile(stack.pass_tensors, batch)
        stack.compile_updates()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user cannot change what the compiler does
            stack.step(*self.batches, run=passes)  # compiles the updates
        return lambda: stack.step(*self.batches, run=passes)

    def _traced_pass(self, as_captured: bool) -> TracedPass:
        stack = self.stack
        return TracedPass(
            stack.losses_and_gradients, stack.pass_tensors, self.batches[0], as_captured
        )

    def _trace(self, make: Callable[[bool], Traced]) -> Traced | None:
        """Return the traced operations; None to capture the model itself."""
        if any(shapes(other) != shapes(self.batches[0]) for other in self.batches):
            return None
        for as_captured in (False, True):
            try:
                return make(as_captured)
            except NotCapturable:
                continue
        return None

    def __call__(self, *batches: Batch, factor: float | None = None) -> Tensor:
        leaves = zip(tree_leaves(self.batches), tree_leaves(batches), strict=True)
        for captured, new in leaves:
            if isinstance(captured, Tensor):
                captured.copy_(new, non_blocking=True)
        if factor is not None:
            self.stack.optimizer.factor.fill_(factor)
        self.graph.replay()
        return self.losses


def _copy(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.clone()
    return leaf
