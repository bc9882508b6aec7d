"""In-place operations on tensors that are the same for all members.

    state = torch.zeros(4); state += x        x differs between members

vmap refuses this, since `state` has no member axis. If the forward pass has just made this tensor,
and nothing else uses its memory, it gets a member axis here: the Python object stays, and what it
holds is exchanged. A tensor that is older than the pass, such as a constant of the model, is left
as it is, and vmap raises.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from orderone.torch_compat import (
    exclusive_storage,
    outside_vmap,
    storage_id,
    tree_leaves,
)

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths

ASSIGNMENTS = (
    Tensor.__setitem__,
    Tensor.__iadd__,
    Tensor.__isub__,
    Tensor.__imul__,
    Tensor.__itruediv__,
    Tensor.__ifloordiv__,
    Tensor.__ipow__,
    Tensor.__iand__,
    Tensor.__ior__,
    Tensor.__ixor__,
)


class NewTensors:
    """Memory of tensors that the current pass has made and that all members share."""

    def __init__(self) -> None:
        self._made: set[int] = set()

    def add(self, mode: "FastPaths", result: object) -> None:
        if isinstance(result, Tensor) and mode.plain(result) and not result.requires_grad:
            self._made.add(storage_id(result.untyped_storage()))

    def give_members(
        self,
        mode: "FastPaths",
        func: Callable[..., object],
        args: tuple[object, ...],
        named: object,
        even_alone: bool = False,
    ) -> None:
        """Give the first argument of an in-place operation a member axis if another one has it.

        With `even_alone`, do it in any case: the operation draws other numbers for each member.
        """
        if not args or not is_in_place(func):
            return
        target = args[0]
        if not isinstance(target, Tensor) or not mode.plain(target) or target.requires_grad:
            return
        others = tree_leaves((args[1:], named))
        if not even_alone and not any(mode.mapped(x) for x in others):
            return
        if storage_id(target.untyped_storage()) not in self._made:
            return
        if not exclusive_storage(target):
            return  # a view of it, or of which it is one, would not see the change
        with outside_vmap():
            members = target.expand(mode.members, *target.shape).clone()
        torch.utils.swap_tensors(target, mode.wrap(members))


def is_in_place(func: Callable[..., object]) -> bool:
    if func in ASSIGNMENTS:
        return True
    name = getattr(func, "__name__", "")
    return name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
