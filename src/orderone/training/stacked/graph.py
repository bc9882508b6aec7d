"""Training step captured once as a CUDA graph, and replayed.

Small members spend most of their time on kernel launches, which a graph avoids. A graph reads and
writes the memory it was captured with: new batches are copied into the memory of the first one.
Everything that a step changes (parameters, optimizer states, step counts) is in tensors, so each
replay continues from the last one.
"""

import torch
from torch import Tensor

from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.stacked.alike import description
from orderone.training.stacked.errors import NotCapturable, NotStackable
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.stack import Stack

WARM_UPS = 3  # steps before a capture, for allocation, autotuning and compilation


class CapturedStep:
    """Captured `Stack.step`, called like it; the next call overwrites the returned tensor."""

    def __init__(self, stack: Stack, *batches: Batch):
        self.stack = stack
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
        self.losses: Tensor
        self.graph: torch.cuda.CUDAGraph = torch.cuda.CUDAGraph()
        # on a separate stream: graphs captured on the same stream share scratch memory of cuBLAS,
        # and could not be replayed at the same time
        try:
            with torch.cuda.graph(self.graph, stream=aside):
                self.losses = stack.step(*self.batches)
        except (RuntimeError, NotStackable) as error:
            # the same step worked three times without a graph just before
            raise NotCapturable(f"a CUDA graph cannot hold this step: {error}") from error
        finally:
            stack.load(before)

    def fits(self, *batches: Batch) -> bool:
        """Return whether batches have the captured shapes; the last of an epoch may be smaller."""
        captured = [x.shape for x in tree_leaves(self.batches) if isinstance(x, Tensor)]
        return captured == [x.shape for x in tree_leaves(batches) if isinstance(x, Tensor)]

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
