"""Forward pass in groups of members, for members that make different decisions."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from orderone.torch_compat import tree_map, version_counter
from orderone.training.stacked.errors import NotStackable

Losses: TypeAlias = tuple[Tensor, dict[str, Tensor]]  # losses of members; buffers by name
Batch: TypeAlias = object  # a tree of tensors, as the user's model takes it


def in_groups(
    groups: Sequence[Sequence[int]],
    run: Callable[[Sequence[int], dict[str, Tensor], Batch], Losses],
    tensors: Mapping[str, Tensor],
    batch: Batch,
    buffers: Sequence[str],
    shared: bool,
) -> Losses:
    """Return the losses of all members in their original order, and all buffers."""
    device = next(iter(tensors.values())).device
    losses_of_groups: list[Tensor] = []
    buffers_of_groups: list[dict[str, Tensor]] = []
    for members in groups:
        rows = torch.tensor(members, device=device)
        group_tensors = {name: x[rows] for name, x in tensors.items()}
        group_batch = batch
        if not shared:
            group_batch = _rows(batch, rows)
        losses, replaced = run(members, group_tensors, group_batch)
        losses_of_groups.append(losses)
        after = group_tensors | replaced
        buffers_of_groups.append({name: after[name] for name in buffers})
    members_of_groups = torch.cat([torch.tensor(members) for members in groups])
    order = members_of_groups.argsort().to(losses_of_groups[0].device)
    joined: dict[str, Tensor] = {}
    for name in buffers:
        joined[name] = torch.cat([values[name] for values in buffers_of_groups])[order]
    return torch.cat(losses_of_groups)[order], joined


def _rows(batch: Batch, rows: Tensor) -> Batch:
    """Return the batch of these members."""

    def pick(leaf: object) -> object:
        if isinstance(leaf, Tensor):
            return leaf[rows]
        return leaf

    return tree_map(pick, batch)


def must_be_unchanged(tensors: Mapping[str, Tensor], versions: Mapping[str, int]) -> None:
    """Raise NotStackable if an interrupted pass has changed a buffer, so it cannot run again."""
    for name, version in versions.items():
        if version_counter(tensors[name]) != version:
            raise NotStackable(
                f"{name} was changed in the forward pass before a decision on which members"
                " differ, so the pass cannot be run again in groups; train one after another"
                " (stacked=False)",
                "changes-before-decision",
            )


def must_be_the_same(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise NotStackable if a pass changes the model: each group would change it once more."""
    for place, text in after.items():
        if before.get(place) != text:
            raise NotStackable(
                f"{place} changes in every forward pass, and members that decide differently need"
                " several passes per step; train one after another (stacked=False)",
                "changes-before-decision",
            )


def must_use_the_same(names: Sequence[str], gradients: Sequence[Tensor | None]) -> None:
    """Raise NotStackable if a tensor has gradients in some groups only.

    torch does not update a tensor without a gradient; a stack would, and momenta and weight decay
    would change it. `gradients` are those of the first group, then of the next.
    """
    for k, name in enumerate(names):
        of_groups = gradients[k :: len(names)]
        reached = [g is not None for g in of_groups]
        if any(reached) and not all(reached):
            raise NotStackable(
                f"{name} is used by some members only, which decide differently: torch does not"
                " update a tensor without a gradient, and a stack would; train one after another"
                " (stacked=False)",
                "branches-use-other-tensors",
            )
