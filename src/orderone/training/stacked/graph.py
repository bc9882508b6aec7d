"""Training step captured once as a CUDA graph, and replayed.

Small members spend most of their time on kernel launches, which a graph avoids. A graph reads and
writes the memory it was captured with: new batches are copied into the memory of the first one.
Everything that a step changes (parameters, optimizer states, step counts) is in tensors, so each
replay continues from the last one.

The graph holds the traced operations of the passes (`traced.py`) where they can be traced, and
otherwise what the model itself does. Traced operations are compiled if that is asked for, or if it
saves time (`compile_pays.py`).
"""

import warnings

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.stacked.alike import description
from orderone.training.stacked.capturing import captured_by
from orderone.training.stacked.compile_pays import compiling_pays
from orderone.training.stacked.errors import NotCapturable, NotCompiled
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.traced import Pass, TracedPass

WARM_UPS = 3  # steps before a capture, for allocation, autotuning and compilation


class CapturedStep:
    """Captured `Stack.step`, called like it; the next call overwrites the returned tensor.

    Args:
        stack: The stack. If it was made with `compile=True`, its passes are compiled.
        *batches: Batches of one step, with the shapes of all others.
        steps: Number of steps to come; passes and updates are then compiled if that saves time.
    """

    def __init__(self, stack: Stack, *batches: Batch, steps: int = 0):
        self.stack = stack
        self.steps = steps
        self.compiled: bool = False
        self.compile_error: str | None = None
        self.batches: tuple[Batch, ...] = tree_map(_copy, batches)
        before = {name: x.detach().clone() for name, x in stack.state().items()}
        model_before = description(stack.program.model)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                stack.step(*self.batches)
        torch.cuda.current_stream().wait_stream(aside)
        if description(stack.program.model) != model_before:
            stack.load(before)
            raise NotCapturable(
                "the forward pass changes attributes of the model, which a graph would not repeat"
            )
        with torch.cuda.stream(aside):
            run = self._trace()
            if run is not None:
                self._compile(run)
        torch.cuda.current_stream().wait_stream(aside)
        self.traced: bool = False
        self.losses: Tensor
        self.graph: torch.cuda.CUDAGraph
        try:
            if run is not None:
                try:
                    self._capture(aside, run)
                    self.traced = True
                    return
                except NotCapturable:
                    pass  # the model may have a way of its own to be captured
            self._capture(aside, None)
        finally:
            stack.load(before)

    def _capture(self, aside: torch.cuda.Stream, run: Pass | None) -> None:
        """Capture a step, on a separate stream.

        Graphs captured on the same stream share scratch memory of cuBLAS, and could not be replayed
        at the same time.
        """
        self.graph = torch.cuda.CUDAGraph()
        try:
            with captured_by(self.graph, aside):
                self.losses = self.stack.step(*self.batches, run=run)
        except (RuntimeError, InputError) as error:
            # the same step worked without a graph just before
            raise NotCapturable(f"a CUDA graph cannot hold this step: {error}") from error

    def _compile(self, run: TracedPass) -> None:
        """Compile the passes and updates if that is asked for, or if it saves time."""
        stack = self.stack
        batch = self.batches[0]
        pays = compiling_pays(run.operations.graph, self.steps, stack.device)
        if not stack.compile and not pays:
            return
        try:
            run.compile(stack.pass_tensors, batch)
        except NotCompiled as error:
            self.compile_error = str(error)
            return
        self.compiled = True
        stack.compile_updates()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user cannot change what the compiler does
            stack.step(*self.batches, run=run)  # compiles the updates

    def _trace(self) -> TracedPass | None:
        """Return the passes as a list of operations; None to capture the model itself."""
        batch = self.batches[0]
        if any(_shapes(other) != _shapes(batch) for other in self.batches):
            return None
        for as_captured in (False, True):
            try:
                return TracedPass(
                    self.stack.losses_and_gradients,
                    self.stack.pass_tensors,
                    batch,
                    as_captured,
                )
            except NotCapturable:
                continue
        return None

    def fits(self, *batches: Batch) -> bool:
        """Return whether batches have the captured shapes; the last of an epoch may be smaller."""
        return _shapes(batches) == _shapes(self.batches)

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


def _shapes(batches: object) -> list[torch.Size]:
    return [x.shape for x in tree_leaves(batches) if isinstance(x, Tensor)]
