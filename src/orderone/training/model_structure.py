"""Description of a model beside its tensors and attributes: classes, modes, trained tensors.

A checkpoint does not hold these. A model may change them in training: replace a module, freeze a
tensor, put a module into evaluation mode, resize a tensor. So a checkpoint says what has changed
since the start, and a model that is resumed must have it.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Resized: TypeAlias = Sequence[str | None]  # two layouts: at the start and now


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


def kind_of(tensor: Tensor) -> str:
    """Return the kind of numbers in a tensor."""
    if tensor.is_complex():
        return "complex numbers"
    if tensor.is_floating_point():
        return "real numbers"
    return "truth values" if tensor.dtype == torch.bool else "whole numbers"


def layouts_of(model: nn.Module) -> dict[str, str]:
    """Return kind and shape of parameters and buffers by name; lazy ones have none yet."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: layout_of(x) for name, x in tensors if not is_lazy(x)}


def layout_of(tensor: Tensor) -> str:
    return f"{kind_of(tensor)} of shape {tuple(tensor.shape)}"


def resized_tensors(start: Mapping[str, str], model: nn.Module) -> dict[str, Resized]:
    """Return the layouts at the start and now of tensors that training has resized, by name.

    None stands for a tensor that is not there.
    """
    now = layouts_of(model)
    resized: dict[str, Resized] = {}
    for name in {**start, **now}:
        if start.get(name) != now.get(name):
            resized[name] = (start.get(name), now.get(name))
    return resized


def resized_text(resized: Mapping[str, Resized]) -> str:
    """Say how training has resized the first of these tensors."""
    name, (start, now) = next(iter(resized.items()))
    if start is None:
        return f"{name} was added, {now}"
    if now is None:
        return f"{name}, {start}, was removed"
    return f"{name} has changed from {start} to {now}"


def resized_by_training(resized: Mapping[str, Resized], model: nn.Module) -> str | None:
    """Return how a training has resized a tensor that a model has as at the start of it.

    None if the model has the layouts that were saved, or others.
    """
    here = layouts_of(model)
    of_start: dict[str, Resized] = {}
    for name, (start, now) in resized.items():
        if here.get(name) == start:
            of_start[name] = (start, now)
    if not of_start:
        return None
    return resized_text(of_start)
