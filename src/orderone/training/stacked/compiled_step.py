"""Compiled training step without a CUDA graph: `compile=True` on a CPU, or with `graphs=False`."""

import time

import torch
from torch import Tensor

from orderone.torch_compat import tree_leaves
from orderone.training.stacked.alike import description
from orderone.training.stacked.errors import NotCapturable, NotCompiled
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.traced_step import TracedStep


class FixedStep:
    """Step of a stack for batches of fixed shapes."""

    def __init__(self, stack: Stack, batches: tuple[Batch, ...]):
        self.stack = stack
        self.batches = batches
        self.compiled: bool = False
        self.compile_error: str | None = None
        self.compile_choice: str | None = None  # why it was compiled, or why not
        self.compile_seconds: float = 0.0

    def fits(self, *batches: Batch) -> bool:
        """Return whether batches have the fixed shapes; the last of an epoch may be smaller."""
        return shapes(batches) == shapes(self.batches)

    def __call__(self, *batches: Batch, factor: float | None = None) -> Tensor:
        return self.stack.step(*batches, factor=factor)


class CompiledStep(FixedStep):
    """Compiled `Stack.step` with one batch, called like it; it runs uncompiled if that fails.

    Raise NotCapturable if a program would not repeat what the model does.
    """

    def __init__(self, stack: Stack, *batches: Batch):
        super().__init__(stack, batches)
        self._program: TracedStep | None = None
        if len(batches) != 1:
            self.compile_error: str | None = (
                "without a CUDA graph, only steps without accumulation are compiled"
            )
            return
        before = {name: x.detach().clone() for name, x in stack.state().items()}
        model_before = description(stack.program.model)
        started = time.monotonic()
        try:
            stack.step(*batches)
            must_not_change(model_before, stack)
            (batch,) = batches
            program = TracedStep(stack, batch)
            program.compile(batch)
        except NotCompiled as error:
            self.compile_error = str(error)
            return
        finally:
            stack.load(before)
        self.compiled: bool = True
        self.compile_seconds: float = time.monotonic() - started
        self._program = program

    def __call__(self, *batches: Batch, factor: float | None = None) -> Tensor:
        if self._program is None:
            return self.stack.step(*batches, factor=factor)
        return self._program(batches[0], factor)


def must_not_change(model_before: dict[str, str], stack: Stack) -> None:
    """Raise NotCapturable if a step has changed attributes of the model."""
    if description(stack.program.model) != model_before:
        raise NotCapturable(
            "the forward pass changes attributes of the model, which a graph would not repeat"
        )


def shapes(batches: object) -> list[torch.Size]:
    return [x.shape for x in tree_leaves(batches) if isinstance(x, Tensor)]
