"""Passes without gradients, except for models that compute derivatives in their forward pass.

Physics-informed networks differentiate their output, force fields an energy. Such a pass needs the
graph that `torch.no_grad` leaves out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import nn

# classes of models whose forward pass works with gradients only
_CLASSES: WeakSet[type[nn.Module]] = WeakSet()


@contextmanager
def without_gradients(model: nn.Module) -> Iterator[None]:
    """Switch gradients off, unless the forward pass of the model needs them."""
    with torch.set_grad_enabled(type(model) in _CLASSES):
        yield


def needs_gradients(model: nn.Module, run: Callable[[], object]) -> bool:
    """Return whether a forward pass works with gradients only; `run` makes it.

    Later passes `without_gradients` of models of this class then have gradients.
    """
    if type(model) in _CLASSES:
        return True
    try:
        with torch.no_grad():
            run()
    except Exception:  # the user's forward code may raise anything
        pass
    else:
        return False
    try:
        with torch.enable_grad():
            run()
    except Exception:
        return False
    _CLASSES.add(type(model))
    return True
