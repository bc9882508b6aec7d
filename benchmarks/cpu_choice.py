"""CPU time of short sweeps: one after another, by the automatic choice, and stacked.

    OMP_NUM_THREADS=1 python benchmarks/cpu_choice.py [rounds=3] [steps=20,50] [members=4] [CASE]

All sweeps run in one process, which has made a short one of each kind before. The ways take turns;
the columns have the median ratio to one after another.
"""

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import orderone as o1
from orderone.nn import GPT

WAYS: dict[str, dict[str, Any]] = {
    "alone": {"stacked": False},
    "auto": {},
    "stacked": {"stacked": True},
}


class Block(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(hidden)))


def cnn(width: int) -> nn.Module:
    blocks = [Block(width) for _ in range(3)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, *head)


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def gpt(width: int) -> nn.Module:
    return GPT(vocab=256, length=32, width=width, heads=2, depth=4)


def images(batch: int) -> Callable[[int, int], Any]:
    def data(step: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        x = torch.randn(batch, 3, 16, 16, generator=generator)
        return x, torch.randint(10, (batch,), generator=generator)

    return data


def numbers(batch: int) -> Callable[[int, int], Any]:
    def data(step: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        x = torch.randn(batch, 64, generator=generator)
        return x, torch.randint(10, (batch,), generator=generator)

    return data


def tokens(batch: int) -> Callable[[int, int], Any]:
    def data(step: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        ids = torch.randint(256, (batch, 33), generator=generator)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return data


class Case(NamedTuple):
    """Model, its width, and its data."""

    build: Callable[[int], nn.Module]
    width: int
    data: Callable[[int, int], Any]


CASES = {
    "cnn12": Case(cnn, 12, images(16)),
    "cnn24": Case(cnn, 24, images(32)),
    "mlp64": Case(mlp, 64, numbers(64)),
    "mlp512": Case(mlp, 512, numbers(512)),
    "gpt64": Case(gpt, 64, tokens(4)),
    "gpt256": Case(gpt, 256, tokens(8)),
}


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    options = dict(word.split("=") for word in words if "=" in word)
    names = [word for word in words if "=" not in word] or list(CASES)
    rounds = int(options.get("rounds", 3))
    members = int(options.get("members", 4))
    print("| case | steps | members | alone s | auto | stacked | chosen |")
    print("| --- " * 7 + "|", flush=True)
    for name in names:
        for steps in map(int, options.get("steps", "20,50").split(",")):
            print(
                f"| {name} | {steps} | {members} | {row(name, steps, members, rounds)} |",
                flush=True,
            )


def row(name: str, steps: int, members: int, rounds: int) -> str:
    """Return the last cells of a row."""
    for way in ("alone", "stacked"):
        timed(CASES[name], 4, members, way)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    chosen: list[str] = []
    for _ in range(rounds):
        for way in WAYS:
            seconds, engine = timed(CASES[name], steps, members, way)
            times[way].append(seconds)
            if way == "auto":
                chosen.append(engine)
    ratios: list[str] = []
    for way in ("auto", "stacked"):
        pairs = zip(times[way], times["alone"], strict=True)
        ratios.append(f"{median(a / b for a, b in pairs):.2f}")
    return " | ".join([f"{median(times['alone']):.2f}", *ratios, ", ".join(chosen)])


def timed(case: Case, steps: int, members: int, way: str) -> tuple[float, str]:
    """Return the CPU seconds of a sweep, and how its first trial was trained."""
    begin = time.process_time()
    swept = o1.sweep(
        case.build,
        {"lr": [1e-3 * 2 ** (k / 4) for k in range(members)]},
        widths=[case.width],
        data=case.data,
        steps=steps,
        device="cpu",
        executor="here",
        progress=False,
        **WAYS[way],
    )
    seconds = time.process_time() - begin
    return seconds, str(next(iter(swept.outcomes.values())).facts["engine"])


if __name__ == "__main__":
    main(sys.argv[1:])
