"""The processes that train one model together, as `torchrun` starts them; or a single one, for
which all this is nothing.

Every process draws the same batch and trains on its own rows of it (row r, r + N, r + 2N, ... of N
processes). Gradients are averaged over processes, so that with equal shares the update is that of
one process on the whole batch.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from orderone.core.errors import one_of
from orderone.torch_compat import tree_leaves, tree_map

STRATEGIES = ("ddp", "fsdp")


@dataclass(frozen=True)
class World:
    """`strategy` is "" for a single process."""

    strategy: str
    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    # --- the model --------------------------------------------------------------------------------

    def wrapped(self, model: nn.Module) -> nn.Module:
        """What the forward pass is called on. FSDP shards in place: layers of module lists one by
        one, then the rest."""
        if self.strategy == "ddp":
            ids = [self.device.index] if self.device.type == "cuda" else None
            return nn.parallel.DistributedDataParallel(model, device_ids=ids)
        if self.strategy == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.size,))
            for layer in _layers(model):
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    def quiet(self, model: nn.Module, last: bool) -> Any:
        """Gradients are exchanged with the last batch of an update only."""
        if self.strategy == "fsdp":
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        if self.strategy == "ddp" and not last:
            return model.no_sync()  # type: ignore[operator]
        return nullcontext()

    # --- numbers and rows -------------------------------------------------------------------------

    def share(self, batch: Any, insist: bool = True) -> Any:
        """This process's rows; all of them, unless that is insisted on, if they cannot be shared
        out equally."""
        if self.size == 1:
            return batch
        rows = {len(x) for x in tree_leaves(batch) if isinstance(x, Tensor) and x.dim()}
        if len(rows) != 1 or next(iter(rows)) % self.size:
            if insist:
                raise ValueError(
                    f"data: expected batches whose rows {self.size} processes can share equally,"
                    f" got {sorted(rows)} rows; change the batch size or the number of processes"
                )
            return batch
        return tree_map(
            lambda x: x[self.rank :: self.size] if isinstance(x, Tensor) and x.dim() else x, batch
        )

    def mean(self, values: Tensor) -> Tensor:
        if self.size == 1:
            return values
        dist.all_reduce(values)
        return values / self.size

    def any(self, flag: bool) -> bool:
        return bool(self.mean(torch.tensor(float(flag), device=self.device)) > 0)

    def gathered(self, values: Tensor) -> list[Tensor]:
        """Those of every process, on the CPU."""
        if self.size == 1:
            return [values]
        found = [torch.empty_like(values, device=self.device) for _ in range(self.size)]
        dist.all_gather(found, values.to(self.device))
        return [x.cpu() for x in found]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def _layers(model: nn.Module) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return [layer for one in lists for layer in one if any(True for _ in layer.parameters())]


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, which all processes must ask for."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    return tensor


def like(value: Tensor, model: Tensor) -> Tensor:
    """A whole tensor as another one is: sharded, or moved to its device."""
    value = value.to(model.device)
    if isinstance(model, DTensor):
        return distribute_tensor(value, model.device_mesh, model.placements)
    return value


@contextmanager
def world(strategy: str | None, device: Any) -> Iterator[World]:
    """From the environment that torchrun sets, or a process group that is there already."""
    ready = dist.is_available() and dist.is_initialized()
    if ready:
        processes = dist.get_world_size()
    else:
        processes = int(os.environ.get("WORLD_SIZE", "1"))
    if strategy is not None:
        strategy = one_of(strategy, STRATEGIES, "strategy")
    if processes == 1 and not (strategy and (ready or "RANK" in os.environ)):
        if strategy is not None:
            raise ValueError(
                f"strategy: {strategy} needs processes; start with `torchrun --nproc-per-node N"
                " script.py`, or leave it out"
            )
        yield World("", 0, 1, _device(device, 0))
        return
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if not ready:
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        here = World(strategy or "ddp", dist.get_rank(), dist.get_world_size(), place)
        yield here
        here.wait()  # who leaves first would cut the line of those who still talk
    finally:
        if not ready:
            dist.destroy_process_group()


def _device(given: Any, local: int) -> torch.device:
    if given is None:
        if torch.cuda.is_available():
            return torch.device("cuda", local)
        return torch.device("cpu")
    found = torch.device(given)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", local)
    return found
