"""Hugging Face models in stacks: architecture x precision x attention on one device.

    python benchmarks/hf_matrix.py [cuda] [speed] [precision ...] [sdpa] [eager] [family ...]

Every family is swept with the same settings: its members one after another, and in one stack.

    apart      largest relative difference of a loss between the two, over ten steps and all members
    kernels    the same between stand-alone runs with different kernels: the other attention,
               products by bmm, and these together with convolutions without oneDNN or cuDNN
    unit       the same between stand-alone runs whose parameters start one unit in the last place
               apart: how far any rounding can bring two runs
    repeated   whether a second run has the same bits: stand-alone, stacked

With `speed`, instead the time of a step of all members: one after another, one after another with
passes replayed from a CUDA graph, and stacked. A time is that of a long sweep minus that of a short
one, which has the same capture.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import orderone as o1

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import hf_families
from support.hf_sweeps import other_convolutions
from support.other_kernels import products_by_bmm

WORDS = sys.argv[1:]
DEVICE = "cuda" if "cuda" in WORDS else "cpu"
SPEED = "speed" in WORDS
KNOWN = ("float32", "bfloat16", "float16")
PRECISIONS = [name for name in KNOWN if name in WORDS] or ["float32", "bfloat16"]
ATTENTIONS = [name for name in ("sdpa", "eager") if name in WORDS] or ["sdpa", "eager"]
NAMES = [name for name in hf_families.FAMILIES if name in WORDS] or list(hf_families.FAMILIES)
STEPS = 10
SEEDS = 8 if DEVICE == "cuda" and SPEED else 2
WIDTH, BATCH, LENGTH = (128, 16, 128) if DEVICE == "cuda" else (32, 4, 16)
SHORT, LONG = (60, 160) if DEVICE == "cuda" else (10, 20)  # steps of replayed and stacked sweeps
EAGER = (5, 15)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, one thread"
    print(
        f"{2 * SEEDS} members, width {WIDTH}, {BATCH} x {LENGTH} tokens, {where}, torch"
        f" {torch.__version__}\n"
    )
    header = ["family", "precision", "attention", "stacked", "apart", "kernels", "unit", "repeated"]
    if SPEED:
        header[4:] = []
        header += ["ms eager", "ms replayed", "ms stacked", "to eager", "to replayed"]
    print(f"| {' | '.join(header)} |")
    print("| --- " * len(header) + "|", flush=True)
    for family in NAMES:
        for attention in hf_families.attentions(family):
            for precision in PRECISIONS:
                if attention in ATTENTIONS:
                    row = [family, precision, attention, *compare(family, precision, attention)]
                    print(f"| {' | '.join(row)} |", flush=True)


def compare(family: str, precision: str, attention: str) -> list[str]:
    try:
        return _compared(family, precision, attention)
    except Exception as error:
        return [f"{type(error).__name__}: {str(error)[:200]}"]


def _compared(family: str, precision: str, attention: str) -> list[str]:
    def trained(stacked: bool, attention: str = attention, **options: Any) -> o1.Sweep:
        return sweep(family, precision, attention, stacked, **options)

    if SPEED:
        return _timed(trained)
    alone = trained(False)
    stacked = trained(True)
    if stacked.notes:
        return [stacked.notes[0][:200]]
    others = [trained(False, attention=other) for other in hf_families.attentions(family)]
    with products_by_bmm():
        others.append(trained(False))
        with other_convolutions(DEVICE):
            others.append(trained(False))
    repeated = [same(alone, trained(False)), same(stacked, trained(True))]
    return [
        "yes",
        f"{distance(stacked, alone):.0e}",
        f"{max(distance(other, alone) for other in others):.0e}",
        f"{distance(trained(False, nudged=True), alone):.0e}",
        ", ".join("yes" if equal else "no" for equal in repeated),
    ]


def _timed(trained: Callable[..., o1.Sweep]) -> list[str]:
    eager = [trained(False, steps=steps, graphs=False) for steps in EAGER]
    replayed = [trained(False, steps=steps) for steps in (SHORT, LONG)]
    fast = [trained(True, steps=steps) for steps in (SHORT, LONG)]
    facts = next(iter(fast[1].outcomes.values())).facts
    row = [f"{facts['engine']}, captured" if facts["graph"] else str(facts["engine"])]
    times = [per_step(*pair) for pair in (eager, replayed, fast)]
    if not next(iter(replayed[1].outcomes.values())).facts["graph"]:
        times[1] = float("nan")
    row += [f"{1e3 * t:.1f}" for t in times]
    return [*row, f"{times[0] / times[2]:.1f}x", f"{times[1] / times[2]:.1f}x"]


def sweep(
    family: str,
    precision: str,
    attention: str,
    stacked: bool,
    steps: int = STEPS,
    nudged: bool = False,
    **options: Any,
) -> o1.Sweep:
    def build(width: int) -> nn.Module:
        sizes = hf_families.longer(family, LENGTH)
        model = hf_families.build(family, width, attn_implementation=attention, **sizes)
        if nudged:
            nudge(model)
        return model

    def data(step: int, seed: int) -> dict[str, Tensor]:
        return hf_families.batch_of(family)(step, seed, BATCH, LENGTH)

    swept = o1.sweep(
        build,
        space={"lr": [1e-3, 2e-3], "seed": range(SEEDS)},
        widths=[WIDTH],
        data=data,
        steps=steps,
        precision=precision,
        device=DEVICE,
        stacked="auto" if stacked else False,
        progress=False,
        **options,
    )
    for outcome in swept.outcomes.values():
        if outcome.error is not None:
            raise RuntimeError(outcome.error)
    return swept


@torch.no_grad()
def nudge(model: nn.Module) -> None:
    """Change every parameter by one unit in the last place, up or down."""
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        sign = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
        p.mul_(1 + sign.to(p.device) * torch.finfo(p.dtype).eps)


def losses(sweep: o1.Sweep) -> np.ndarray:
    return np.array([outcome.losses[:STEPS] for outcome in sweep.outcomes.values()], float)


def distance(one: o1.Sweep, other: o1.Sweep) -> float:
    return float(np.abs(losses(one) / losses(other) - 1).max())


def same(one: o1.Sweep, other: o1.Sweep) -> bool:
    return np.array_equal(losses(one), losses(other))


def per_step(short: o1.Sweep, long: o1.Sweep) -> float:
    """Return the seconds of a step of all members, without what happens once."""
    steps = [len(next(iter(sweep.outcomes.values())).losses) for sweep in (short, long)]
    seconds = [sum(o.seconds for o in sweep.outcomes.values()) for sweep in (short, long)]
    return (seconds[1] - seconds[0]) / (steps[1] - steps[0])


if __name__ == "__main__":
    main()
