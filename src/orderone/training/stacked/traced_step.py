"""Whole training step of a stack as one list of tensor operations: passes, clipping, update.

    parameters, buffers, optimizer states, settings of members, batch  ->  losses; states in place

Learning rates, betas, weight decay and other settings of members are tensors with an entry for each
member, and inputs of the list. So one compiled program serves all members, and every later stack of
the same shapes. Compiled as one, the update reads gradients where the backward pass makes them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule

from orderone.torch_compat import tree_flatten, tree_leaves, tree_unflatten
from orderone.training.stacked.compiling import Operations, compiled, lift_constants
from orderone.training.stacked.groups import Batch
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.traced import operations_of, reading_known_values


class TracedStep:
    """Traced `Stack.step` with one batch, called like it, for batches of the same shapes.

    Tracing makes a step: the caller restores the state of the stack.

    Args:
        stack: The stack; its tensors are updated in place.
        batch: A batch with the shapes of all others.
        as_captured: Tell models that ask for it that a CUDA graph is being captured.
    """

    def __init__(self, stack: Stack, batch: Batch, as_captured: bool = False):
        self.factor: Tensor = stack.optimizer.factor
        state = [*stack.state().values(), self.factor]
        leaves, spec = tree_flatten(batch)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def flat(*inputs: Tensor) -> list[Tensor]:
            # the state is found by identity: `inputs` begin with the tensors of the stack
            batch_leaves = list(leaves)
            for place, leaf in zip(places, inputs[len(state) :], strict=True):
                batch_leaves[place] = leaf
            with reading_known_values(as_captured):
                return [stack.step(tree_unflatten(batch_leaves, spec))]

        with stack.optimizer.elementary_updates():
            self.operations: GraphModule = operations_of(
                flat, [*state, *(leaves[place] for place in places)]
            )
        constants = lift_constants(self.operations)
        self.state: list[Tensor] = [x.detach() for x in state]
        self.constants: list[Tensor] = [x.detach() for x in constants]
        self._run: Operations = self.operations

    def compile(self, batch: Batch) -> None:
        """Compile the operations, and make one step."""
        self._run = compiled(self.operations, self._inputs(batch))

    @torch.no_grad()
    def __call__(self, batch: Batch, factor: float | None = None) -> Tensor:
        if factor is not None:
            self.factor.fill_(factor)
        (losses,) = self._run(*self._inputs(batch))
        return losses

    def _inputs(self, batch: Batch) -> Sequence[Tensor]:
        leaves = [leaf.detach() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        return [*self.state, *leaves, *self.constants]
