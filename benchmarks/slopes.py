"""The growth of activations with width after four steps of AdamW, for unmodified models without and
with a plan.

    python benchmarks/slopes.py [model ...]

The slope is that of log RMS against log width, 64 to 512, of the module whose output grows fastest.
Models are those of tests/support/zoo.py.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.zoo import ZOO

import orderone as o1

WIDTHS, STEPS, LR, SEEDS = (64, 128, 256, 512), 4, 1e-2, 2
MODELS = ("mistral", "llama-gqa", "gpt-neox", "opt", "gemma2", "t5", "vit")


def sizes(name: str, width: int, seed: int, planned: bool) -> dict[str, float]:
    """Return the RMS of the output of every module without children, after training."""
    torch.manual_seed(seed)
    entry = ZOO[name]
    model = entry.build(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    if planned:
        plan = o1.plan(
            model,
            base=entry.build(WIDTHS[0]),
            rule="mup",
            optimizer="adamw",
            lr=LR,
            weight_decay=0.0,
        )
        plan.apply()
        optimizer = plan.optimizer()
    batch = entry.batch(0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        entry.loss(model(**batch), batch).backward()
        optimizer.step()
    found: dict[str, float] = {}
    for path, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _m, _i, out, path=path: _record(found, path, out))
    with torch.no_grad():
        model(**batch)
    return found


def _record(found: dict[str, float], path: str, output: object) -> None:
    output = output[0] if isinstance(output, tuple) else output
    if isinstance(output, torch.Tensor) and output.is_floating_point():
        found[path] = output.square().mean().sqrt().item()


def worst_slope(name: str, planned: bool) -> tuple[float, str]:
    runs = [[sizes(name, width, seed, planned) for seed in range(SEEDS)] for width in WIDTHS]
    logs = {
        path: [np.mean([math.log(run[path]) for run in at_width]) for at_width in runs]
        for path in runs[0][0]
    }
    slopes = {
        path: float(np.polyfit(np.log(WIDTHS), values, 1)[0]) for path, values in logs.items()
    }
    return max((slope, path) for path, slope in slopes.items())


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    print("| model | without a plan | with a plan |\n| --- | --- | --- |", flush=True)
    for name in names:
        plain, planned = worst_slope(name, planned=False), worst_slope(name, planned=True)
        print(f"| {name} | n^{plain[0]:+.2f} | n^{planned[0]:+.2f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
