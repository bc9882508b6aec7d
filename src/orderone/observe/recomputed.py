"""Store the activations of blocks under torch.utils.checkpoint instead of recomputing them.

Recomputation happens in the backward pass, where neither vmap nor replaced weights are available.
Values are the same. The memory that checkpointing would save is used; the number of members of a
stack that fit on a GPU accounts for it. torch has no switch for this. Modules import `checkpoint`
by name, so the two implementations that it calls (reentrant or not) are patched inside its module.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from torch.utils import checkpoint

from orderone.torch_compat import CHECKPOINT_GENERATORS


class _Direct:
    """Replacement of the autograd function of the reentrant implementation."""

    @staticmethod
    def apply(function: Callable[..., object], preserve_rng_state: bool, *args: object) -> object:
        return function(*args)


def _nothing_around(*args: object, **named: object) -> Iterator[None]:
    """Replacement of the generator of the other implementation; it does nothing."""
    yield


@contextmanager
def without_recomputation() -> Iterator[None]:
    """Make `torch.utils.checkpoint` run blocks as if they were not checkpointed."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(checkpoint, "CheckpointFunction", _Direct))
        for name in CHECKPOINT_GENERATORS:
            if hasattr(checkpoint, name):
                patches.enter_context(patch.object(checkpoint, name, _nothing_around))
        yield
