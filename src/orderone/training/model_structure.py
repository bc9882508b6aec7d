"""Description of a model beside its tensors and attributes: classes, modes, trained tensors.

A checkpoint does not hold these. A model may change them in training: replace a module, freeze a
tensor, put a module into evaluation mode. So a checkpoint says what has changed since the start,
and a model that is resumed must have it.
"""

from collections.abc import Mapping

from torch import nn


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
