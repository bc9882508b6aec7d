"""Batches for many members: from the task's `stacked` method, or stacked here."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orderone.sweeping.job import Job
from orderone.torch_compat import tree_flatten, tree_map, tree_unflatten
from orderone.training.source import Batch, Source, moved
from orderone.training.stacked.errors import NotStackable


def stacked_batches(job: Job, source: Source, step: int, seeds: Sequence[int]) -> list[Batch]:
    """Return the batches of one update, each with a leading axis of members."""
    first = step * job.accumulate
    return [_batch(job, source, first + part, seeds) for part in range(job.accumulate)]


def _batch(job: Job, source: Source, step: int, seeds: Sequence[int]) -> Batch:
    """Return one batch for all members; members with the same seed share it, made once."""
    different = list(dict.fromkeys(seeds))
    device = torch.device(job.device)
    if source.stacked is not None:
        made = moved(source.stacked(step, different, device), device, job.precision)
    else:
        batches: list[Batch] = []
        for batch in source.many(step, different):
            batches.append(moved(batch, device, job.precision))
        made = _stacked(batches, different)
    if different == list(seeds):
        return made
    rows = torch.tensor([different.index(seed) for seed in seeds], device=device)
    return tree_map(lambda x: x[rows] if isinstance(x, Tensor) else x, made)


def _stacked(batches: Sequence[Batch], seeds: Sequence[int]) -> Batch:
    first_leaves, structure = tree_flatten(batches[0])
    leaves_of_batches: list[list[Any]] = [first_leaves]
    for batch in batches[1:]:
        batch_leaves, _ = tree_flatten(batch)
        leaves_of_batches.append(batch_leaves)
    leaves: list[Any] = []
    for parts in zip(*leaves_of_batches, strict=True):
        shapes = {_shape_of(x) for x in parts}
        if len(shapes) > 1:
            raise NotStackable(
                "data: expected batches of one shape for all members, got"
                f" {', '.join(map(str, shapes))} for seeds {', '.join(map(str, seeds))} at the same"
                " step; pad them to one shape, or train one after another (stacked=False)",
                "batch-shapes-differ",
                argument="data",
            )
        if isinstance(parts[0], Tensor):
            leaves.append(torch.stack(parts))
        else:
            leaves.append(parts[0])
    return tree_unflatten(leaves, structure)


def _shape_of(x: Any) -> Any:
    """Return the shape of a tensor, or another value itself."""
    if isinstance(x, Tensor):
        return tuple(x.shape)
    return x
