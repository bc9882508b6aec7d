"""The speed at which tasks make batches, compared with a training step.

    python benchmarks/data.py [root]

One thread, median of interleaved runs. The step is forward, backward and AdamW of the smallest
model of a sweep, for which the share of data loading is largest. "stacked" makes the batches of 16
members in one call; its time is per member. With a `root` that has real data (`make data`),
CIFAR-10 and byte pairs are measured too.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from orderone import data
from orderone.nn import GPT, EncoderDecoder, VisionTransformer
from orderone.observe.batches import loss_of

MEMBERS, ROUNDS, REPEATED = 16, 5, 4


def tasks(root: Path | None) -> dict[str, tuple[Any, nn.Module]]:
    found: dict[str, tuple[Any, nn.Module]] = {}
    language = data.language()
    found["language, bytes 16 x 128"] = (
        language,
        GPT(vocab=256, length=128, width=64, heads=2, depth=4),
    )
    noisy = data.denoising(batch=16, length=126)
    found["denoising, bytes 16 x 126"] = (
        noisy,
        EncoderDecoder(vocab=noisy.vocab, length=128, width=64, heads=2, depth=2),
    )
    for name, recipe in {"plain": {}, "crop": {"augment": "crop"}, "S2": dict(data.S2)}.items():
        found[f"digits, {name} 64"] = data.images("digits", **recipe), vit(8, 1, 2)
    if root is not None:
        pairs = data.language("sotu", "gpt2", root=root)
        found["language, byte pairs 16 x 128"] = (
            pairs,
            GPT(vocab=pairs.vocab, length=128, width=64, heads=2, depth=2),
        )
        for name, recipe in {"plain": {}, "crop": {"augment": "crop"}, "S2": dict(data.S2)}.items():
            found[f"CIFAR-10, {name} 128"] = (
                data.images("cifar10", 128, root=root, **recipe),
                vit(32, 3, 4),
            )
    return found


def vit(image: int, channels: int, patch: int) -> nn.Module:
    return VisionTransformer(
        image=image, channels=channels, patch=patch, classes=10, width=64, heads=2, depth=4
    )


def timed(run: Callable[[int], object], start: int) -> float:
    began = time.perf_counter()
    for i in range(REPEATED):
        run(start + i)
    return (time.perf_counter() - began) / REPEATED


def measure(task: Any, model: nn.Module) -> dict[str, float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = task.batch(0, 0)

    def step(_: int) -> None:
        optimizer.zero_grad()
        loss_of(model, batch, task.loss).backward()
        optimizer.step()

    runs = {
        "batch": lambda i: task.batch(i, 0),
        "stacked": lambda i: task.stacked(i, range(MEMBERS)),
        "step": step,
    }
    taken = {
        name: [timed(run, REPEATED * i) for i in range(ROUNDS)][1:] for name, run in runs.items()
    }
    times = {name: statistics.median(values) for name, values in taken.items()}
    return times | {"stacked": times["stacked"] / MEMBERS}


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    print(
        "| task | batch, ms | stacked, ms | per second | step, ms | batch / step | stacked / step |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (task, model) in tasks(root).items():
        times = measure(task, model)
        text = "language" in name or "denoising" in name
        number = tree_leaves(task.batch(0, 0))[0].numel() if text else task.size
        rate = f"{number / times['stacked']:,.0f} {'tokens' if text else 'images'}"
        cells = [
            f"{1e3 * times['batch']:.2f}",
            f"{1e3 * times['stacked']:.2f}",
            rate,
            f"{1e3 * times['step']:.1f}",
        ]
        shares = [f"{times[kind] / times['step']:.1%}" for kind in ("batch", "stacked")]
        print(f"| {name} | {' | '.join(cells + shares)} |")


if __name__ == "__main__":
    main()
