"""Models, data and jobs for several processes (they import this file)."""

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import orderone as o1
from orderone.training.outcome import Trained
from orderone.training.train import train

STEPS, PROCESSES = 12, 2
COMMON: dict[str, Any] = {
    "schedule": "cosine",
    "warmup": 3,
    "clip": 0.5,
    "accumulate": 2,
    "seed": 3,
    "evaluate_every": 5,
    "report_every": 4,
}


class Block(nn.Module):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Toy:
    """Classes by the sign of a sum; the same batch for the same step and seed."""

    name, loss = "toy", None

    def batch(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        x = torch.randn(8, 6, generator=generator)
        return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    def evaluation(self) -> Sequence[Any]:
        return [self.batch(-1, 10), self.batch(-2, 10)]


def planned(
    width: int = 32, dropout: float = 0.0, optimizer: str = "adamw", **options: Any
) -> o1.Plan:
    torch.manual_seed(0)
    base = Net(16, dropout)
    torch.manual_seed(1)
    return o1.plan(
        Net(width, dropout),
        base=base,
        optimizer=optimizer,
        **{"rule": "mup", "lr": 0.01, **options},
    )


def one(strategy: str | None, path: Path | None = None, steps: int = STEPS) -> Trained:
    return train(
        planned(), Toy(), steps, strategy=strategy, device="cpu", checkpoint=path, **COMMON
    )


class StoppedError(Exception):
    pass


class Breaks:
    """Sink that ends the training at a step by raising an error."""

    def __init__(self, at: int):
        self.at = at

    def start(self, step: int) -> None: ...

    def log(self, step: int, values: Any) -> None:
        if step >= self.at:
            raise StoppedError

    def close(self) -> None: ...


def broken(strategy: str | None, path: Path, at: int = 8) -> None:
    """Train until an error after the first checkpoint."""
    settings = COMMON | {"sinks": Breaks(at), "checkpoint": path, "checkpoint_seconds": 0}
    try:
        train(planned(), Toy(), STEPS, strategy=strategy, device="cpu", **settings)
    except StoppedError:
        return


def stopped(strategy: str, path: Path) -> None:
    """Train until one process is asked to stop; all processes must stop at the same step."""
    import orderone.training.interrupts as interrupts

    try:
        interrupts.pending = lambda: dist.get_rank() == 1  # only one process is asked to stop
        one(strategy, path)
    except KeyboardInterrupt:
        return
    finally:
        interrupts.pending = lambda: False


def _resumed(strategy: str, folder: str) -> list[float]:
    stopped(strategy, Path(folder) / f"{strategy}.safetensors")
    return one(strategy, Path(folder) / f"{strategy}.safetensors").losses.tolist()


def _resumed_from_folder(path: Path) -> list[float]:
    stopped("fsdp", path)
    return one("fsdp", path).losses.tolist()


def _saved_often(path: Path) -> tuple[list[float], list[str]]:
    """Train while checkpoints are written; return losses, and the checkpoints that stay."""
    settings = COMMON | {"checkpoint": path, "checkpoint_seconds": 0}
    run = train(planned(), Toy(), 3 * STEPS, strategy="fsdp", device="cpu", **settings)
    return run.losses.tolist(), sorted(folder.name for folder in path.iterdir())


JOBS: dict[str, Callable[[str], Any]] = {
    "ddp": lambda folder: _both(one("ddp")),
    "fsdp": lambda folder: _both(one("fsdp")),
    "ddp, resumed": lambda folder: _resumed("ddp", folder),
    "fsdp, resumed": lambda folder: _resumed("fsdp", folder),
    "fsdp, for one": lambda folder: stopped("fsdp", Path(folder) / "for_one.safetensors"),
    "fsdp, folder": lambda folder: _resumed_from_folder(Path(folder) / "sharded"),
    "fsdp, saved often": lambda folder: _saved_often(Path(folder) / "often"),
    "odd rows": lambda folder: train(
        planned(), lambda step, seed: Toy().batch(step, seed)[0][:7], 2, device="cpu"
    ),
}


def _both(made: Trained) -> tuple[list[float], list[tuple[int, float]]]:
    return made.losses.tolist(), made.evaluation


def process(rank: int, folder: str) -> None:
    """Run all jobs and save their results; the result of a job that fails is its traceback."""
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES
    )
    results: dict[str, Any] = {}
    for name, job in JOBS.items():
        try:
            results[name] = job(folder)
        except Exception:
            results[name] = traceback.format_exc()
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.barrier()
    dist.destroy_process_group()
