"""A loss function for one training: objects with state are copied, so that trainings share none.

A loss may count its calls, or average what it has seen. Trials of a sweep would otherwise begin
with what the trials before them have left.
"""

import copy
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType

from torch import Tensor, nn

from orderone.observe.batches import Loss

STATELESS = (FunctionType, MethodType, BuiltinFunctionType, type, type(None))
LARGEST = 1 << 26  # bytes of tensors, such as those of a teacher, that are copied


def fresh_loss(loss: Loss | None) -> Loss | None:
    """Return a copy of a loss that is an object; a function, or one that cannot be copied, itself.

    An object with large tensors is not copied either.
    """
    if isinstance(loss, STATELESS) or _bytes_in(loss) > LARGEST:
        return loss
    try:
        return copy.deepcopy(loss)
    except Exception:  # objects of the user may raise anything
        return loss


def _bytes_in(loss: object) -> int:
    """Return the bytes of the tensors that an object holds in its attributes."""
    held: list[object] = [loss, *getattr(loss, "__dict__", {}).values()]
    if isinstance(loss, partial):
        held += [*loss.args, *loss.keywords.values()]
    tensors: dict[int, Tensor] = {}
    for value in held:
        if isinstance(value, Tensor):
            tensors[id(value)] = value
        elif isinstance(value, nn.Module):
            for x in [*value.parameters(), *value.buffers()]:
                tensors[id(x)] = x
    return sum(x.numel() * x.element_size() for x in tensors.values())
