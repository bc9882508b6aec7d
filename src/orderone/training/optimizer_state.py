"""State of an optimizer in a checkpoint: of tensors, of groups, and attributes of the instance.

Optimizers of torch have all their state in `state`. Others count steps in their groups (as
`schedulefree` does) or in attributes. A checkpoint has all of these if they consist of tensors,
numbers, texts, and lists and dictionaries of these. `NotSavedError` is raised for anything else: a
training that continued without it would be another training.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.equal_strides import equal_state_strides
from orderone.optimizers.table import class_name

Tree: TypeAlias = dict[str, Any]
_PLAIN = (str, bool, int, float, type(None))
# set by a plan, or by the training before every step
_NOT_STATE = ("params", "names", "name", "param_names", "lr")


class NotSavedError(TypeError):
    """The state of this optimizer cannot be written to a file."""


def state_of(optimizer: Optimizer) -> Tree:
    """Return the state as nested dictionaries and lists of tensors and plain values."""
    groups: list[Tree] = []
    for group in optimizer.param_groups:
        groups.append({name: value for name, value in group.items() if name not in _NOT_STATE})
    tree: Tree = {
        "state": optimizer.state_dict()["state"],
        "groups": [_savable_part(group) for group in groups],
        "attributes": [_attributes(part) for part in _parts(optimizer)],
    }
    for part in _parts(optimizer):
        _check(part)
    return tree


def load_state(optimizer: Optimizer, tree: Mapping[str, Any]) -> None:
    """Set the state that `state_of` returned."""
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, tree["groups"], strict=True):
        for name, value in saved.items():
            if not _same(group.get(name), value):  # a tuple that has become a list stays as it is
                group[name] = value
    optimizer.load_state_dict({"state": tree["state"], "param_groups": groups})
    for part, attributes in zip(_parts(optimizer), tree["attributes"], strict=True):
        equal_state_strides(part)  # files have contiguous tensors
        for name, value in attributes.items():
            if not _same(getattr(part, name, None), value):
                setattr(part, name, value)


def _parts(optimizer: Optimizer) -> list[Optimizer]:
    if isinstance(optimizer, CombinedOptimizer):
        return list(optimizer.parts.values())
    return [optimizer]


def _same(present: object, saved: object) -> bool:
    if isinstance(present, tuple) and isinstance(saved, list):
        return list(present) == saved
    if isinstance(present, Tensor) or isinstance(saved, Tensor):
        return False
    return present == saved


def _savable_part(group: Tree) -> Tree:
    """Return the values of a group that can be written; functions and the like do not change."""
    part: Tree = {}
    for name, value in group.items():
        if _is_savable(value):
            part[name] = value
    return part


def _attributes(optimizer: Optimizer) -> Tree:
    """Return attributes that the class of the user adds to those of every optimizer."""
    of_torch = vars(SGD([nn.Parameter(torch.zeros(1))]))
    attributes: Tree = {}
    if type(optimizer).__module__.startswith(("torch.optim.", "orderone.")):
        return attributes
    for name, value in vars(optimizer).items():
        if name in of_torch or callable(value):
            continue
        if not _is_savable(value) or isinstance(value, (Mapping, list, Tensor)):
            raise NotSavedError(
                f"{class_name(type(optimizer))} has an attribute {name} of type"
                f" {type(value).__name__}, which may be part of its state"
            )
        attributes[name] = value
    return attributes


def _check(optimizer: Optimizer) -> None:
    for state in optimizer.state_dict()["state"].values():
        if not isinstance(state, Mapping):
            state = {"entry": state}
        for name, value in state.items():
            if not _is_savable({name: value}):
                raise NotSavedError(
                    f"the state {name} of {class_name(type(optimizer))} is of type"
                    f" {class_name(type(value))}, not a plain tensor or a number"
                )


def unsaved_part(tree: object) -> str | None:
    """Return the type of the first part of a tree that cannot be written; None if all can."""
    if _is_savable(tree):
        return None
    parts: list[object] = []
    if isinstance(tree, Mapping):
        parts = [*tree.keys(), *tree.values()]
    elif isinstance(tree, (list, tuple)):
        parts = list(tree)
    for part in parts:
        if not _is_savable(part):
            return unsaved_part(part)
    return f"a {class_name(type(tree))}"


def _is_savable(value: object) -> bool:
    if isinstance(value, Tensor):
        return type(value) in (Tensor, nn.Parameter) or hasattr(value, "full_tensor")
    if isinstance(value, Mapping):
        return all(isinstance(key, (str, int)) for key in value) and all(
            _is_savable(inner) for inner in value.values()
        )
    if isinstance(value, (list, tuple)):
        return all(_is_savable(inner) for inner in value)
    return isinstance(value, _PLAIN)
