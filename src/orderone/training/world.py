"""Processes that train one model together, as `torchrun` starts them; or a single process.

Every process draws the same batch and trains on a part of its rows (process r of N takes rows r,
r + N, r + 2N, ...). Gradients are averaged over processes, so that with equal parts the update is
the same as that of one process on the whole batch.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orderone.core.errors import InputError, one_of
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.inputs import Device
from orderone.training.source import Batch

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True)
class World:
    """Place of this process among `size` processes; `strategy` is "" for a single process."""

    strategy: str
    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    # --- the model --------------------------------------------------------------------------------

    def wrapped(self, model: nn.Module) -> nn.Module:
        """Return the module to call for a forward pass.

        FSDP shards in place: layers of module lists one by one, then the rest.
        """
        if self.strategy == "ddp":
            if self.device.type == "cuda":
                ids = [self.device.index]
            else:
                ids = None
            return DistributedDataParallel(model, device_ids=ids)
        if self.strategy == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.size,))
            for layer in _layers(model):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    def gradient_sync(self, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Exchange gradients between processes only for the last batch of an update."""
        if self.strategy == "fsdp":
            cast("FSDPModule", model).set_requires_gradient_sync(last)
        if self.strategy == "ddp" and not last:
            return cast(DistributedDataParallel, model).no_sync()
        return nullcontext()

    # --- numbers and rows -------------------------------------------------------------------------

    def share(self, batch: Batch, insist: bool = True) -> Batch:
        """Return this process's rows of `batch`.

        If the rows cannot be divided equally, raise an InputError; without `insist`, return all.
        """
        if self.size == 1:
            return batch
        rows = {len(x) for x in tree_leaves(batch) if isinstance(x, Tensor) and x.dim()}
        if len(rows) != 1 or next(iter(rows)) % self.size:
            if insist:
                raise InputError(
                    "data: expected batches whose number of rows is a multiple of the"
                    f" {self.size} processes, got {sorted(rows)} rows; change the batch size or the"
                    " number of processes",
                    "batch-not-divisible",
                    argument="data",
                )
            return batch

        def rows_of_rank(leaf: object) -> object:
            if isinstance(leaf, Tensor) and leaf.dim():
                return leaf[self.rank :: self.size].contiguous()  # models use `view`
            return leaf

        return tree_map(rows_of_rank, batch)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of `values` over all processes."""
        if self.size == 1:
            return values
        dist.all_reduce(values)
        return values / self.size

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        if self.size == 1:
            return flag
        return bool(self.mean(torch.tensor(float(flag), device=self.device)) > 0)

    def gathered(self, values: Tensor) -> list[Tensor]:
        """Gather `values` from all processes to the CPU."""
        if self.size == 1:
            return [values]
        everywhere = [torch.empty_like(values, device=self.device) for _ in range(self.size)]
        dist.all_gather(everywhere, values.to(self.device))
        return [x.cpu() for x in everywhere]

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.size > 1:
            dist.barrier()


def single_process(device: torch.device) -> World:
    """Return the world of a single process."""
    return World("", 0, 1, device)


def _layers(model: nn.Module) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            layers += [layer for layer in module if list(layer.parameters())]
    return layers


def _is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return whether this is a DTensor, without importing that class, which takes a second.

    No tensor can be a DTensor before its module was imported.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; all processes must call this."""
    if _is_sharded(tensor):
        return tensor.full_tensor()
    return tensor


def like(value: Tensor, model: Tensor) -> Tensor:
    """Return a whole tensor on the device of `model`, and sharded like it."""
    value = value.to(model.device)
    if _is_sharded(model):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, model.device_mesh, model.placements)
    return value


@contextmanager
def join_world(strategy: str | None, device: Device) -> Iterator[World]:
    """Join the processes that torchrun started, or an existing process group."""
    ready = dist.is_available() and dist.is_initialized()
    if ready:
        processes = dist.get_world_size()
    else:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
    if strategy is not None:
        strategy = one_of(strategy, STRATEGIES, "strategy")
    if processes == 1 and not (strategy and (ready or "RANK" in os.environ)):
        if strategy is not None:
            raise InputError(
                f"strategy: {strategy} needs several processes; start the script with `torchrun"
                " --nproc-per-node N script.py`, or leave strategy out",
                "needs-torchrun",
                argument="strategy",
            )
        yield single_process(_local_device(device, 0))
        return
    local = _local_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if local.type == "cuda":
        torch.cuda.set_device(local)
    if not ready:
        # gloo also writes sharded checkpoints in the background
        dist.init_process_group("cpu:gloo,cuda:nccl" if local.type == "cuda" else "gloo")
    try:
        world = World(strategy or "ddp", dist.get_rank(), dist.get_world_size(), local)
        yield world
        world.wait()  # a process that left first would close the others' connections
    finally:
        if not ready:
            dist.destroy_process_group()


def _local_device(device: Device, local_rank: int) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", local_rank)
    return chosen
