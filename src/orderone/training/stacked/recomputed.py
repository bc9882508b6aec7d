"""Blocks under torch.utils.checkpoint, whose activations are kept instead of recomputed.

Recomputing happens in the backward pass, where neither vmap nor the members' weights are at hand.
Values are the same; the memory that checkpoints would save is taken, and counted when members are
fitted into a GPU. torch has no switch for it: the two ways of `checkpoint`, which is imported by
its name everywhere, are replaced where it looks them up.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from torch.utils import checkpoint

from orderone.torch_compat import CHECKPOINT_GENERATORS


class _Direct:
    """In place of the autograd function of the reentrant way."""

    @staticmethod
    def apply(function: Callable[..., object], preserve_rng_state: bool, *args: object) -> object:
        return function(*args)


def _nothing_around(*args: object, **named: object) -> Iterator[None]:
    """In place of what the other way does before and after the block."""
    yield


@contextmanager
def kept_activations() -> Iterator[None]:
    """Within this, `torch.utils.checkpoint` runs blocks as if they were not checkpointed."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(checkpoint, "CheckpointFunction", _Direct))
        for name in CHECKPOINT_GENERATORS:
            if hasattr(checkpoint, name):
                patches.enter_context(patch.object(checkpoint, name, _nothing_around))
        yield
