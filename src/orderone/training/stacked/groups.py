"""A forward pass run for groups of members, where all together could not agree on what to do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from orderone.torch_compat import tree_map, version_counter
from orderone.training.stacked.errors import NotStackable

Losses = tuple[Tensor, dict[str, Tensor]]


def in_groups(
    groups: Sequence[Sequence[int]],
    run: Callable[[dict[str, Tensor], Any], Losses],
    tensors: Mapping[str, Tensor],
    batch: Any,
    buffers: Sequence[str],
    shared: bool,
) -> Losses:
    """The losses of all members in their order, and all buffers."""
    parts: list[Losses] = []
    for members in groups:
        rows = torch.tensor(members, device=next(iter(tensors.values())).device)
        own = {name: x[rows] for name, x in tensors.items()}
        if shared:
            given = batch
        else:
            given = tree_map(lambda x, rows=rows: x[rows] if isinstance(x, Tensor) else x, batch)
        losses, replaced = run(own, given)
        parts.append((losses, {name: replaced.get(name, own[name]) for name in buffers}))
    order = (
        torch.tensor([member for members in groups for member in members])
        .argsort()
        .to(parts[0][0].device)
    )
    joined = {name: torch.cat([held[name] for _, held in parts])[order] for name in buffers}
    return torch.cat([losses for losses, _ in parts])[order], joined


def must_be_unchanged(tensors: Mapping[str, Tensor], versions: Mapping[str, int]) -> None:
    """A pass that was left half-way cannot be run again if it has changed something."""
    for name, version in versions.items():
        if version_counter(tensors[name]) != version:
            raise NotStackable(
                f"{name} has changed before a decision on which members differ, and cannot be run"
                " for many members at once; train one after another (stacked=False)"
            )


def must_be_the_same(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Passes of several groups through one model would count as several."""
    for place, what in after.items():
        if before.get(place) != what:
            raise NotStackable(
                f"{place} changes with every pass, and members that decide differently need several"
                " for one step; train one after another (stacked=False)"
            )
