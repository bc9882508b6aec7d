"""Custom autograd functions (torch.autograd.Function) inside a stack.

torch.vmap refuses those without a vmap rule, and most have none. They are run outside vmap, one
member after another, where they act as in a single network. Functions with a rule of their own are
left to torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from torch import Tensor
from torch.autograd import Function

from orderone.torch_compat import DisableTorchFunction, outside_vmap, tree_leaves, tree_map
from orderone.training.stacked.one_by_one import one_by_one

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths


@contextmanager
def functions_one_by_one(mode: "FastPaths") -> Iterator[None]:
    """Run custom autograd functions for one member after another."""
    # a classmethod of Python up to torch 2.14, one of C in 2.15: both are bound by __get__
    original: Any = vars(Function)["apply"]

    def apply(cls: type[Function], *args: object, **named: object) -> object:
        run = original.__get__(None, cls)
        tensors = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
        if _has_rule(cls) or not mode.known(*tensors):
            return run(*args, **named)
        with outside_vmap(), DisableTorchFunction():
            results = one_by_one(run, mode, *args, **named)
        return tree_map(mode.wrap_tensor, results)

    with patch.object(Function, "apply", classmethod(apply)):
        yield


def _has_rule(cls: type[Function]) -> bool:
    """Return whether torch.vmap can map this function."""
    own_rule = cls.vmap is not Function.vmap
    new_style = cls.setup_context is not Function.setup_context
    return new_style and (own_rule or bool(cls.generate_vmap_rule))
