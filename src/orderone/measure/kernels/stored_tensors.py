"""Tensors that a forward pass stores as attributes of modules, such as the last attention.

A pass under `torch.vmap` stores tensors that exist only inside of it, and any pass stores tensors
with a history of gradients. Neither can be copied, so that the model could not be copied or saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

from torch import Tensor, nn

from orderone.torch_compat import tree_leaves

TORCH = frozenset(vars(nn.Module()))  # attributes that every module has
CONTAINERS = (list, dict, set)


@contextmanager
def without_new_tensors(model: nn.Module) -> Iterator[None]:
    """Restore attributes that hold other tensors after the block than before."""
    before = [(module, _snapshot(module)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            _restore(module, attributes)


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model; stored tensors lose their history."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in TORCH:
                continue
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor) and not leaf.is_leaf:
                    memo[id(leaf)] = leaf.detach().clone()
    return deepcopy(model, memo)


def _snapshot(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the attributes, each with a copy of its contents if it is a container."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, value in vars(module).items():
        if name not in TORCH:
            contents = copy(value) if type(value) in CONTAINERS else None
            found[name] = (value, contents)
    return found


def _restore(module: nn.Module, before: dict[str, tuple[Any, Any]]) -> None:
    attributes = vars(module)
    for name in [name for name in attributes if name not in TORCH]:
        value = attributes[name]
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            continue
        if name not in before:
            del attributes[name]
            continue
        old, contents = before[name]
        attributes[name] = old
        if contents is not None:
            _refill(old, contents)


def _refill(container: Any, contents: Any) -> None:
    """Give a list, dict or set its former contents."""
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)
