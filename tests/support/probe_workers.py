"""Trainings with a probe, distributed over two processes; they import this file."""

import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import orderone as o1

PROCESSES, STEPS, SHAPE = 2, 2, (4, 6)
EVERY = 3  # of the probes whose records are gathered


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def inputs(step: int, rank: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(10 * step + rank))


def smooth(bias: bool = True) -> nn.Sequential:
    """A net whose outputs do not depend on the other rows of a batch."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3, bias=bias))


def gathered(model: nn.Module, batch: Callable[[int], Tensor]) -> dict[str, Any]:
    """Train, and return the records of all processes together."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with o1.probe(model, optimizer, batch=inputs(9, 0), every=EVERY) as p:
        for step in range(STEPS * EVERY):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    return {"rows": p.gather().to_dict("list")}


def whole(step: int) -> Tensor:
    return torch.cat([inputs(step, rank) for rank in range(PROCESSES)])


def train(model: nn.Module, rank: int, **options: Any) -> dict[str, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with o1.probe(model, optimizer, **options) as p:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(inputs(step, rank)).square().mean().backward()
            optimizer.step()
    return {"rows": p.frame.to_dict("list")}


def replicated(rank: int) -> dict[str, Any]:
    model = net()
    return train(DistributedDataParallel(model), rank, batch=inputs(9, 0)) | {
        "weights": model.state_dict()
    }


def recorded_by_one(rank: int) -> dict[str, Any]:
    """Train with a probe in one process only: no process waits for the other."""
    model = DistributedDataParallel(net())
    if rank == 0:
        return train(model, rank, batch=inputs(9, 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(inputs(step, rank)).square().mean().backward()
        optimizer.step()
    return {}


def sharded(rank: int) -> dict[str, Any]:
    model, mesh = net(), init_device_mesh("cpu", (PROCESSES,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return train(model, rank, batch=inputs(9, 0))


def gathered_shards(rank: int) -> dict[str, Any]:
    model, mesh = smooth(), init_device_mesh("cpu", (PROCESSES,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return gathered(model, lambda step: inputs(step, rank))


def tensor_parallel(rank: int) -> dict[str, Any]:
    model, mesh = smooth(bias=False), init_device_mesh("cpu", (PROCESSES,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return gathered(model, whole)


JOBS = {
    "replicated": replicated,
    "recorded by one": recorded_by_one,
    "sharded": sharded,
    "gathered, fsdp2": gathered_shards,
    "gathered, tensor parallel": tensor_parallel,
}


def process(rank: int, folder: str) -> None:
    """Run all jobs; a failed job returns its error."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    results = {}
    for name, job in JOBS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about gloo and CPU meshes
            try:
                results[name] = job(rank)
            except Exception:
                results[name] = traceback.format_exc()
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # on a busy machine, threads of gloo that are not over yet would abort the process
