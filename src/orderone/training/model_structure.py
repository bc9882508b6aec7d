"""Description of a model beside its tensors and attributes: classes, modes, trained tensors.

A checkpoint does not hold these. A model may change them in training: replace a module, freeze a
tensor, put a module into evaluation mode, resize a tensor. So a checkpoint says what has changed
since the start, and a model that is resumed must have it.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import nn
from torch.nn.parameter import is_lazy

Shape: TypeAlias = "Sequence[int] | None"  # None: there is no such tensor


def structure_of(model: nn.Module) -> dict[str, str]:
    """Return class and mode of every module, and whether each parameter is trained, by name."""
    structure: dict[str, str] = {}
    for name, module in model.named_modules():
        mode = "training" if module.training else "evaluation"
        structure[name or "the model"] = f"{type(module).__qualname__} in {mode} mode"
    for name, p in model.named_parameters():
        if p.requires_grad:
            structure[name] = "trained"
        else:
            structure[name] = "not trained"
    return structure


def changed_structure(start: Mapping[str, str], model: nn.Module) -> dict[str, str]:
    """Return the present entries that differ from the start, by name; "" for what is gone."""
    now = structure_of(model)
    changed: dict[str, str] = {}
    for name in {**start, **now}:
        if start.get(name) != now.get(name):
            changed[name] = now.get(name, "")
    return changed


def lost_structure(model: nn.Module, changed: Mapping[str, str]) -> str | None:
    """Return the first change before the save that a model lacks; None if it has all."""
    here = structure_of(model)
    for name, text in changed.items():
        if here.get(name, "") != text:
            now = here.get(name, "") or "missing"
            return f"{name} was {text or 'missing'} when it was saved, and is {now} after a load"
    return None


def shapes_of(model: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of parameters and buffers by name; lazy ones have none yet."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: list(x.shape) for name, x in tensors if not is_lazy(x)}


def resized_tensors(
    start: Mapping[str, list[int]], model: nn.Module
) -> dict[str, tuple[Shape, Shape]]:
    """Return the shapes at the start and now of tensors that training has resized, by name."""
    now = shapes_of(model)
    resized: dict[str, tuple[Shape, Shape]] = {}
    for name in {**start, **now}:
        if start.get(name) != now.get(name):
            resized[name] = (start.get(name), now.get(name))
    return resized


def resized_text(resized: Mapping[str, Sequence[Shape]]) -> str:
    """Say how training has resized the first of these tensors."""
    name, (start, now) = next(iter(resized.items()))
    if start is None:
        return f"{name} was added, with the shape {_shown(now)}"
    if now is None:
        return f"{name}, which had the shape {_shown(start)}, was removed"
    return f"the shape of {name} has changed from {_shown(start)} to {_shown(now)}"


def resized_by_training(resized: Mapping[str, Sequence[Shape]], model: nn.Module) -> str | None:
    """Return how a training has resized a tensor that a model has as at the start of it.

    None if the model has the shapes that were saved, or others.
    """
    here = shapes_of(model)
    of_start: dict[str, Sequence[Shape]] = {}
    for name, (start, now) in resized.items():
        if here.get(name) == start:
            of_start[name] = (start, now)
    if not of_start:
        return None
    return resized_text(of_start)


def _shown(shape: Shape) -> str:
    return str(tuple(shape or ()))
