"""Hugging Face models in a stack: which can be stacked, the difference of their losses from
stand-alone runs, and the speed-up.

    python benchmarks/architectures.py [cuda] [bfloat16] [float32] [family ...]

Every family is swept twice with the same settings: its members one after another, and in one stack.

    apart      largest relative difference of a loss between the two, over all steps and members
    kernels    the same between two stand-alone runs with different kernels: eager instead of fused
               attention, and on a CPU products without oneDNN
    speed      time of a step of all members one after another, over that of the stack. The time of
               a stack is that of a long sweep minus that of a short one, which has the same capture
"""

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import orderone as o1

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import hf_families

PRECISIONS = ("bfloat16", "float32")
WORDS = sys.argv[1:]
DEVICE = "cuda" if "cuda" in WORDS else "cpu"
NAMES = [name for name in hf_families.FAMILIES if name in WORDS] or list(hf_families.FAMILIES)
STEPS = 10  # of the comparison
SEEDS = 8 if DEVICE == "cuda" else 2
WIDTH, BATCH, LENGTH = (128, 16, 128) if DEVICE == "cuda" else (32, 4, 16)
# Steps of the sweeps that are timed. On a GPU, stacks that take at least 50 steps are captured as a
# graph.
ALONE = 15
SHORT, LONG = (60, 260) if DEVICE == "cuda" else (10, 30)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, one thread"
    print(
        f"{2 * SEEDS} members, width {WIDTH}, {BATCH} x {LENGTH} tokens, {where}, torch"
        f" {torch.__version__}\n"
    )
    print(
        "| family | precision | stacked | apart | kernels | ms per step, stand-alone | stacked"
        " | speed |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for precision in [name for name in PRECISIONS if name in WORDS] or PRECISIONS:
        for family in NAMES:
            print(
                f"| {family} | {precision} | {' | '.join(compare(family, precision))} |", flush=True
            )


def compare(family: str, precision: str) -> list[str]:
    try:
        alone = trained(family, precision, ALONE, stacked=False)
        short = trained(family, precision, SHORT, stacked=True)
        long = trained(family, precision, LONG, stacked=True)
        others = other_kernels(family, precision)
    except Exception as error:
        return [f"{type(error).__name__}: {str(error)[:200]}"]
    if long.notes:
        return [long.notes[0][:200]]
    graph = next(iter(long.outcomes.values())).facts["graph"]
    slow = seconds(alone) / ALONE
    fast = (seconds(long) - seconds(short)) / (LONG - SHORT)
    return [
        "yes, captured" if graph else "yes",
        f"{distance(long, alone):.0e}",
        f"{max(distance(other, alone) for other in others):.0e}",
        f"{1e3 * slow:.1f}",
        f"{1e3 * fast:.1f}",
        f"{slow / fast:.1f}x",
    ]


def trained(family: str, precision: str, steps: int, stacked: bool, **options: Any) -> o1.Sweep:
    def build(width: int) -> nn.Module:
        return hf_families.build(family, width, max_position_embeddings=LENGTH, **options)

    def data(step: int, seed: int) -> dict[str, Tensor]:
        return hf_families.batch(step, seed, BATCH, LENGTH)

    return o1.sweep(
        build,
        space={"lr": [1e-3, 4e-3], "seed": range(SEEDS)},
        widths=[WIDTH],
        data=data,
        steps=steps,
        precision=precision,
        device=DEVICE,
        stacked="auto" if stacked else False,
        progress=False,
    )


def other_kernels(family: str, precision: str) -> list[o1.Sweep]:
    eager_attention = trained(family, precision, STEPS, stacked=False, attn_implementation="eager")
    if DEVICE == "cuda":
        return [eager_attention]
    with torch.backends.mkldnn.flags(enabled=False):
        return [eager_attention, trained(family, precision, STEPS, stacked=False)]


def distance(one: o1.Sweep, other: o1.Sweep) -> float:
    """Return the largest relative difference of a loss within the first steps.

    Learning rates are constant, so these losses are the same in sweeps of any length.
    """
    first, second = ([o.losses[:STEPS] for o in sweep.outcomes.values()] for sweep in (one, other))
    return float(np.abs(np.array(first, float) / np.array(second, float) - 1).max())


def seconds(sweep: o1.Sweep) -> float:
    """Return the training time of all members together, without the time to build them."""
    return sum(outcome.seconds for outcome in sweep.outcomes.values())


if __name__ == "__main__":
    main()
