"""Update of a single model whose forward and backward pass is replayed from a CUDA graph.

For trainings that cannot be stacked. The graph holds the two passes; the optimizer runs as usual,
so that any optimizer can be used. A pass that depends on more than tensors (a decision on a value,
an attribute that it changes) is run as usual, or compiled (`compiled_pass.py`).
"""

import gc
from dataclasses import dataclass, field

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.compiled_pass import CompilableStep
from orderone.training.source import Batch, moved
from orderone.training.stacked.alike import description
from orderone.training.stacked.capturing import captured_by
from orderone.training.stacked.constants import CachedConstants
from orderone.training.stacked.errors import NotCapturable
from orderone.training.stacked.host_draws import HostDraws
from orderone.training.step import Step

WARM_UPS = 3  # passes before a capture, for allocation and autotuning
MOST_SHAPES = 4  # graphs of one training; batches of further shapes are not captured


class CapturedPass:
    """Forward and backward pass for batches of one shape."""

    def __init__(self, step: Step, batch: Batch):
        self.step = step
        self.batch: Batch = tree_map(_copy, batch)
        module = step.module
        buffers = {name: x.detach().clone() for name, x in module.named_buffers()}
        gradients = {p: p.grad for p in module.parameters()}
        before = description(module)
        constants = CachedConstants()
        draws = HostDraws()
        try:
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside), constants:
                with draws:
                    self._warm_up()
                for _ in range(WARM_UPS - 1):
                    self._warm_up()
            torch.cuda.current_stream().wait_stream(aside)
            if description(module) != before:
                raise NotCapturable("the forward pass changes attributes of the model")
            _refuse_draws(draws)
            self._clear_gradients()
            self.graph: torch.cuda.CUDAGraph = torch.cuda.CUDAGraph()
            try:
                with captured_by(self.graph, aside), constants:
                    self.loss: Tensor = Step.add_gradients(step, self.batch)
            except (RuntimeError, InputError) as error:
                # the same pass worked three times without a graph just before
                raise NotCapturable(str(error)) from error
            # memory of the graph, which every replay writes
            self.gradients: dict[Tensor, Tensor | None] = {
                p: p.grad for p in module.parameters() if p.grad is not None
            }
        finally:
            with torch.no_grad():
                for name, x in module.named_buffers():
                    x.copy_(buffers[name])
            for p, gradient in gradients.items():
                p.grad = gradient

    def _warm_up(self) -> None:
        self._clear_gradients()
        Step.add_gradients(self.step, self.batch)

    def _clear_gradients(self) -> None:
        for p in self.step.module.parameters():
            p.grad = None

    def add_gradients(self, batch: Batch) -> Tensor:
        """Replay the passes for `batch`; return its loss."""
        for captured, new in zip(tree_leaves(self.batch), tree_leaves(batch), strict=True):
            if isinstance(captured, Tensor):
                captured.copy_(new, non_blocking=True)
        self.graph.replay()
        for p, gradient in self.gradients.items():
            assert gradient is not None
            if p.grad is not None:
                p.grad.add_(gradient)
            elif self.step.settings.accumulate > 1:
                p.grad = gradient.clone()  # the next batch overwrites it
            else:
                p.grad = gradient
        return self.loss.clone()


@dataclass(frozen=True)
class ReplayedStep(CompilableStep):
    """Step that captures its passes once for each shape of a batch, or else may compile them.

    The first pass is an ordinary one: models set attributes in it, such as the kind of a loss.
    """

    captured: dict[str, CapturedPass | None] = field(default_factory=dict)  # None: not capturable
    first_shapes: list[str] = field(default_factory=list)  # of the first batch

    def add_gradients(self, batch: Batch) -> Tensor:
        shapes = str(tree_map(_shape, batch))
        if not self.first_shapes:
            self.first_shapes.append(shapes)
            return Step.add_gradients(self, batch)
        if shapes not in self.captured and len(self.captured) < MOST_SHAPES:
            self.captured[shapes] = self._capture(batch)
        replayed = self.captured.get(shapes)
        if replayed is None:
            return super().add_gradients(batch)
        return replayed.add_gradients(batch)

    def _capture(self, batch: Batch) -> CapturedPass | None:
        if None in self.captured.values():
            return None  # another shape would not help
        try:
            return CapturedPass(self, moved(batch, self.world.device, self.settings.precision))
        except NotCapturable:
            pass
        gc.collect()  # the error referred to tensors of another stream, also in cycles
        return None

    @property
    def replays(self) -> bool:
        """Whether a pass was captured."""
        return any(replayed is not None for replayed in self.captured.values())


def _refuse_draws(draws: HostDraws) -> None:
    if draws.matter:
        raise NotCapturable(
            "the forward pass draws random numbers on the CPU; a graph would repeat the first ones"
        )


def _copy(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.clone()
    return leaf


def _shape(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return (tuple(leaf.shape), leaf.dtype)
    return leaf
