"""What looking costs: a training step of a 12-layer GPT, eager, with AdamW, with and without the probe.

    python benchmarks/probe.py [device]

Steps with and without it take turns; a ratio is the median of the ratios of neighbours, with the interval in which that
median lies at 95 %. On the host it is taken twice: from the time this thread had on a core, which other work on the
machine disturbs less, and from the clock on the wall. Everything is recorded by default: every module and tensor, every
step. "fixed batch" adds a pass on 64 tokens a step, for `change`; "pass alone" is what that pass costs by itself. What
weights cost is the same for every length of a batch, so there are two. The model is the nano-gpt of
tests/planning/zoo.py, on bytes, with one thread.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planning"))

import zoo

import orderone as o1

WIDTH, LAYERS, HEAD, BYTES, ROWS, LENGTHS, FIXED, STEPS = 256, 12, 32, 256, 8, (128, 256), 64, 16
Times = tuple[float, float]
zoo.VOCAB, zoo.LENGTH, zoo.HEAD = BYTES, max(LENGTHS), HEAD


def batch(rows: int, length: int, device: str) -> dict[str, Tensor]:
    ids = torch.randint(BYTES, (rows, length + 1), device=device)
    return {"idx": ids[:, :-1], "targets": ids[:, 1:].contiguous()}


def trained(device: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = zoo.NanoGPT(WIDTH, LAYERS).to(device)
    return model, AdamW(model.parameters(), lr=1e-4)


def step(model: nn.Module, optimizer: Optimizer, data: dict[str, Tensor]) -> None:
    optimizer.zero_grad()
    model(**data)[1].backward()
    optimizer.step()


def seconds(action: Callable[[], Any], device: str) -> Times:
    """Of this thread, and on the wall: where the work is done elsewhere, only the latter counts."""
    own, wall = time.thread_time(), time.perf_counter()
    action()
    if device != "cpu":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - wall
    return (time.thread_time() - own if device == "cpu" else elapsed), elapsed


def measure(device: str, length: int) -> dict[str, list[Times]]:
    """Seconds of every step, in turns."""
    data, fixed = batch(ROWS, length, device), batch(1, FIXED, device)
    options: dict[str, dict[str, Any]] = {"without": {}, "probe": {}, "probe, fixed batch": {"batch": fixed}}
    with ExitStack() as stack:
        runs = {name: trained(device) for name in options}
        for name, (model, optimizer) in runs.items():
            if name != "without":
                stack.enter_context(o1.probe(model, optimizer, **options[name]))
        actions: dict[str, Callable[[], Any]] = {name: partial(step, *run, data) for name, run in runs.items()}
        model = trained(device)[0]
        actions["pass alone"] = torch.no_grad()(lambda: model(**fixed))
        turns = [{name: seconds(action, device) for name, action in actions.items()} for _ in range(STEPS + 2)]
    return {name: [turn[name] for turn in turns[2:]] for name in actions}


def ratio(found: dict[str, list[Times]], name: str, clock: int) -> str:
    """The median, and the order statistics between which it lies at 95 % (signs are binomial)."""
    ratios = sorted(one[clock] / plain[clock] for one, plain in zip(found[name], found["without"], strict=True))
    outside = int(binom.ppf(0.025, len(ratios), 0.5)) - 1
    return f"{median(ratios):.3f} ({ratios[max(outside, 0)]:.3f} to {ratios[-1 - max(outside, 0)]:.3f})"


def main(device: str) -> None:
    torch.set_num_threads(1)
    print("| | a step, ms | ratio, own time | ratio, wall |\n| --- | --- | --- | --- |", flush=True)
    for length in LENGTHS:
        found = measure(device, length)
        for name, times in found.items():
            step_ms, ratios = 1e3 * median(own for own, _ in times), [ratio(found, name, clock) for clock in (0, 1)]
            print(f"| {ROWS} x {length} tokens: {name} | {step_ms:.1f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cpu"])
