"""The cost of a probe: a training step of a 12-layer GPT, eager, with AdamW, with and without it.

    python benchmarks/probe.py [device]

Turns with and without the probe alternate; a ratio is the median of the ratios of neighbours, with
its 95 % interval. On the host it is computed twice: from the CPU time of this thread, which other
work disturbs less, and from wall-clock time. By default the probe records every module and tensor
at every step. "fixed batch" adds a pass on 64 tokens per step, for `change`; "pass alone" is the
cost of that pass. Recording weights costs the same for every batch size, so several sizes are
measured. "hooks alone" is a lower bound: empty hooks on modules and their outputs. The model is the
nano-gpt of tests/support/zoo.py, on bytes, with one thread; on a GPU products are in TF32.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from scipy.stats import binom
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import zoo

import orderone as o1

LAYERS, HEAD, BYTES, FIXED = 12, 32, 256, 64
Times = tuple[float, float]


class Setting(NamedTuple):
    rows: int
    length: int
    width: int = 256
    autocast: bool = False

    def __str__(self) -> str:
        return (
            f"width {self.width}, {self.rows} x {self.length}"
            f" tokens{', bfloat16' if self.autocast else ''}"
        )


SETTINGS = {
    "cpu": [Setting(8, 128), Setting(8, 256)],
    "cuda": [
        Setting(rows, length, width, autocast)
        for rows, length, width in ((8, 128, 256), (64, 1024, 256), (16, 1024, 768))
        for autocast in (False, True)
    ],
}
STEPS, TURNS = {"cpu": 1, "cuda": 10}, {"cpu": 16, "cuda": 8}  # steps in a turn, and turns
zoo.VOCAB, zoo.LENGTH, zoo.HEAD = BYTES, max(setting.length for setting in SETTINGS["cuda"]), HEAD


def batch(rows: int, length: int, device: str) -> dict[str, Tensor]:
    ids = torch.randint(BYTES, (rows, length + 1), device=device)
    return {"idx": ids[:, :-1], "targets": ids[:, 1:].contiguous()}


def trained(width: int, device: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = zoo.NanoGPT(width, LAYERS).to(device)
    return model, AdamW(model.parameters(), lr=1e-4)


def step(model: nn.Module, optimizer: Optimizer, data: dict[str, Tensor], setting: Setting) -> None:
    optimizer.zero_grad()
    with torch.autocast(data["idx"].device.type, torch.bfloat16, enabled=setting.autocast):
        loss = model(**data)[1]
    loss.backward()
    optimizer.step()


@contextmanager
def hooks_alone(model: nn.Module) -> Iterator[None]:
    """Register empty hooks on every module, which any probe in Python needs."""

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda gradient: None)

    handles = [
        module.register_forward_pre_hook(lambda module, args: None) for module in model.modules()
    ]
    handles += [module.register_forward_hook(after) for module in model.modules()]
    yield
    for handle in handles:
        handle.remove()


def seconds(action: Callable[[], Any], device: str) -> Times:
    """Return CPU time of this thread and wall-clock time; on a GPU only the latter counts."""
    own, wall = time.thread_time(), time.perf_counter()
    for _ in range(STEPS[device]):
        action()
    if device != "cpu":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - wall
    return (time.thread_time() - own if device == "cpu" else elapsed), elapsed


def measure(device: str, setting: Setting) -> dict[str, list[Times]]:
    """Return the seconds of every turn."""
    data, fixed = batch(setting.rows, setting.length, device), batch(1, FIXED, device)
    looks: dict[str, Callable[..., Any]] = {
        "without": lambda *run: nullcontext(),
        "hooks alone": lambda model, _: hooks_alone(model),
        "probe": o1.probe,
        "probe, fixed batch": partial(o1.probe, batch=fixed),
    }
    if STEPS[device] > 1:
        looks["probe, every tenth step"] = partial(o1.probe, every=STEPS[device])
    with ExitStack() as stack:
        runs = {name: trained(setting.width, device) for name in looks}
        for name, look in looks.items():
            stack.enter_context(look(*runs[name]))
        actions: dict[str, Callable[[], Any]] = {
            name: partial(step, *run, data, setting) for name, run in runs.items()
        }
        model = trained(setting.width, device)[0]
        actions["pass alone"] = torch.no_grad()(lambda: model(**fixed))
        turns = [
            {name: seconds(action, device) for name, action in actions.items()}
            for _ in range(TURNS[device] + 2)
        ]
    return {name: [turn[name] for turn in turns[2:]] for name in actions}


def ratio(found: dict[str, list[Times]], name: str, clock: int) -> str:
    """Return the median and its 95 % interval from order statistics (signs are binomial)."""
    ratios = sorted(
        one[clock] / plain[clock] for one, plain in zip(found[name], found["without"], strict=True)
    )
    outside = int(binom.ppf(0.025, len(ratios), 0.5)) - 1
    return (
        f"{median(ratios):.3f} ({ratios[max(outside, 0)]:.3f} to"
        f" {ratios[-1 - max(outside, 0)]:.3f})"
    )


def main(device: str) -> None:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest" if device == "cpu" else "high")
    print(
        "| | step, ms | ratio, CPU time | ratio, wall time |\n| --- | --- | --- | --- |", flush=True
    )
    for setting in SETTINGS[device]:
        found = measure(device, setting)
        for name, times in found.items():
            step_ms = 1e3 * median(own for own, _ in times) / STEPS[device]
            ratios = [ratio(found, name, clock) for clock in (0, 1)]
            print(f"| {setting}: {name} | {step_ms:.1f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cpu"])
