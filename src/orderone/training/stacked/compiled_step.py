"""Training steps of fixed shapes without a CUDA graph: compiled, or with traced passes.

`CompiledStep` is used if the user asks for it (`compile=True`) on a CPU, or with `graphs=False`.
`TracedPassesStep` is used in long trainings on a CPU: the operations of the passes run from a list,
without vmap, autograd and the code of the model, which take a fifth of a step of small models.
"""

import time

import torch
from torch import Tensor

from orderone.seeding import AllGenerators
from orderone.torch_compat import tree_leaves
from orderone.training.code_state import global_texts
from orderone.training.stacked.alike import description
from orderone.training.stacked.errors import NotCapturable, NotCompiled
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.traced import TracedPass
from orderone.training.stacked.traced_step import TracedStep

# Steps that are worth tracing passes for. Tracing takes 0.8 ms for each operation, and saves 10
# microseconds of it in each step (16 GPTs of width 64).
WORTH_TRACING = 250


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


class TracedPassesStep(FixedStep):
    """`Stack.step` whose passes are traced, called like it.

    Raise NotCapturable if a list of operations would not repeat what the model does.
    """

    def __init__(self, stack: Stack, *batches: Batch):
        super().__init__(stack, batches)
        before = {name: x.detach().clone() for name, x in stack.state().items()}
        outside = _outside(stack)
        try:
            stack.step(*batches)
            _must_be_the_same(outside, _outside(stack))
            self._pass: TracedPass = TracedPass(
                stack.losses_and_gradients, stack.pass_tensors, batches[0]
            )
        finally:
            stack.load(before)
        for node in self._pass.operations.graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise NotCapturable("the forward pass draws random numbers")

    def __call__(self, *batches: Batch, factor: float | None = None) -> Tensor:
        return self.stack.step(*batches, factor=factor, run=self._pass)


def _outside(stack: Stack) -> tuple[dict[str, str], dict[str, str], AllGenerators]:
    """Return what a step may change outside the tensors of the stack."""
    program = stack.program
    texts = global_texts(program.model, program.loss)
    return description(program.model), texts, AllGenerators.now()


def _must_be_the_same(
    before: tuple[dict[str, str], dict[str, str], AllGenerators],
    after: tuple[dict[str, str], dict[str, str], AllGenerators],
) -> None:
    if before[:2] != after[:2]:
        raise NotCapturable(
            "the forward pass changes attributes of the model or global variables, which a list of"
            " operations would not repeat"
        )
    generators = before[2]
    if not (torch.equal(generators.cpu, after[2].cpu) and generators.same_outside_torch(after[2])):
        raise NotCapturable("the forward pass draws random numbers")


def must_not_change(model_before: dict[str, str], stack: Stack) -> None:
    """Raise NotCapturable if a step has changed attributes of the model."""
    if description(stack.program.model) != model_before:
        raise NotCapturable(
            "the forward pass changes attributes of the model, which a graph would not repeat"
        )


def shapes(batches: object) -> list[torch.Size]:
    return [x.shape for x in tree_leaves(batches) if isinstance(x, Tensor)]
