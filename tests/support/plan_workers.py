"""Models, a training loop, and code that runs in other processes (they import this file)."""

import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import orderone as o1
from support.zoo import VOCAB, ZOO, Batch, Entry, next_token, text

WIDTH, BASE_WIDTH, STEPS, PROCESSES = 64, 32, 5, 2


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Own(nn.Module):
    """LayerNorms and a tied head, which needs a multiplier in a hook when the plan gets no example
    batch."""

    def __init__(self, width: int, layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.tie_weights()

    def tie_weights(self) -> None:
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


MODELS: dict[str, Entry] = {
    "own": Entry("own", Own, text, next_token),
    "llama": ZOO["llama"],
    "gpt2": ZOO["gpt2"],
    "paper": ZOO["mlp"],  # every multiplier of the rule in a hook
}
OPTIONS: dict[str, dict[str, Any]] = {
    "own": {"probe": False},  # without a traced pass the head's multiplier stays in a hook
    "paper": {"gauge": "paper"},
}
LAYERS = {"own": "blocks", "llama": "model.layers", "gpt2": "transformer.h"}


@cache
def base(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name].build(BASE_WIDTH)


def fresh(name: str, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name].build(WIDTH)


def planned(name: str, model: nn.Module, **options: Any) -> o1.Plan:
    options = {"lr": 3e-3, "weight_decay": 0.1} | OPTIONS.get(name, {}) | options
    return o1.plan(model, base=base(name), rule="mup", optimizer="adamw", **options)


def train(
    name: str,
    forward: Callable[..., Any],
    optimizer: Optimizer,
    steps: Iterable[int] = range(STEPS),
    part: Callable[[Batch], Batch] = lambda batch: batch,
) -> list[float]:
    """Return the losses on the fixed batches of these steps."""
    entry, losses = MODELS[name], []
    for step in steps:
        batch = part(entry.batch(step))
        loss = entry.loss(forward(**batch), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run(name: str, model: nn.Module, forward: Callable[..., Any] | None = None) -> list[float]:
    """Plan, apply, train."""
    plan = planned(name, model)
    plan.apply()
    return train(name, forward or model, plan.optimizer())


# --- processes ------------------------------------------------------------------------------------


def share(batch: Batch) -> Batch:
    """Return the rows of this process."""
    rows = slice(dist.get_rank(), None, PROCESSES)
    return {
        key: value[rows] if isinstance(value, Tensor) else value for key, value in batch.items()
    }


def averaged(name: str, model: nn.Module, optimizer: Optimizer) -> list[float]:
    losses = torch.tensor(train(name, model, optimizer, part=share))
    dist.all_reduce(losses)
    return (losses / PROCESSES).tolist()


def sharded(name: str, model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in model.get_submodule(LAYERS[name]).children() if name in LAYERS else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def split(name: str, model: nn.Module) -> nn.Module:
    """Shard the matrices `up` and `down` of every block over the processes."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in model.get_submodule(LAYERS[name]).children():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


WRAPPERS: dict[str, Callable[[str, nn.Module], nn.Module]] = {
    "ddp": lambda name, model: DistributedDataParallel(model),
    "fsdp": sharded,
    "tensor parallel": split,
}


def wrapped_after(name: str, wrapper: str) -> list[float]:
    model = fresh(name)
    plan = planned(name, model)
    plan.apply()
    return _losses(name, wrapper, WRAPPERS[wrapper](name, model), plan)


def wrapped_before(name: str, wrapper: str) -> list[float]:
    model = WRAPPERS[wrapper](name, fresh(name))
    plan = planned(name, model)
    plan.apply()
    return _losses(name, wrapper, model, plan)


def _losses(name: str, wrapper: str, model: nn.Module, plan: o1.Plan) -> list[float]:
    optimizer = plan.optimizer()
    plan.check(optimizer)
    return (
        train(name, model, optimizer)
        if wrapper == "tensor parallel"
        else averaged(name, model, optimizer)
    )


def sharded_before_memory(name: str, wrapper: str) -> dict[str, tuple[float, float, bool]]:
    """Built on the meta device, sharded there, drawn by `apply`: size, planned size, and whether
    both shards are alike."""
    with torch.device("meta"):
        model = MODELS[name].build(WIDTH)
    plan = planned(name, model)
    sharded(name, model).to_empty(device="cpu")
    shards: list[Any] = list(model.parameters())
    for shard in shards:
        shard.to_local().data.fill_(float("nan"))
    torch.manual_seed(0)
    plan.apply()
    found = {}
    for row in plan.rows:
        value: Any = plan.tensors()[row.name]
        full = value.full_tensor().detach()
        one, other = full.chunk(2)
        alike = row.constant is None and one.shape == other.shape and bool((one == other).all())
        found[row.name] = (full.square().mean().sqrt().item(), row.init_std, alike)
    return found


JOBS: dict[str, tuple[Callable[[str, str], Any], str, str]] = {
    f"{name}, {wrapper}, {'plan first' if job is wrapped_after else 'plan last'}": (
        job,
        name,
        wrapper,
    )
    for wrapper, names in (("ddp", LAYERS), ("fsdp", LAYERS), ("tensor parallel", ["own"]))
    for name in names
    for job in (wrapped_after, wrapped_before)
} | {"paper, fsdp, never written": (sharded_before_memory, "paper", "fsdp")}


def process(rank: int, folder: str) -> None:
    """Run all jobs; a job that fails returns its error."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    results = {}
    for key, (job, name, wrapper) in JOBS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about gloo and CPU meshes
            try:
                results[key] = job(name, wrapper)
            except Exception:
                results[key] = traceback.format_exc()
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.destroy_process_group()
