"""The growth of activations with width after four steps of AdamW, for unmodified models without and
with a plan.

    python benchmarks/slopes.py [--starts | --local] [model ...]

With `--starts`, plans with every start of `init=` instead. The slope is that of log RMS against log
width, 64 to 512, of the module whose output grows fastest. tests/support/zoo.py has the models.

With `--local`, planned models with ten seeds and widths up to 1024: exponents between neighbouring
widths of the module whose output grows fastest, with standard errors.
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
LOCAL_WIDTHS, LOCAL_SEEDS = (*WIDTHS, 1024), 10
STARTS = ("fan-in", "xavier", "orthogonal", "zero-readout", "zero-residual", "completep")
MODELS = ("mistral", "llama-gqa", "gpt-neox", "opt", "gemma2", "t5", "vit")


def sizes(name: str, width: int, seed: int, start: str | None) -> dict[str, float]:
    """Return the RMS of the output of every module without children, after training.

    `start` is the `init` of the plan; None trains without a plan.
    """
    torch.manual_seed(seed)
    entry = ZOO[name]
    model = entry.build(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    if start is not None:
        plan = o1.plan(
            model,
            base=entry.build(WIDTHS[0]),
            rule="mup",
            optimizer="adamw",
            lr=LR,
            weight_decay=0.0,
            init=start,
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


def worst_slope(name: str, start: str | None) -> tuple[float, str]:
    runs = [[sizes(name, width, seed, start) for seed in range(SEEDS)] for width in WIDTHS]
    logs = {
        path: [np.mean([math.log(run[path]) for run in at_width]) for at_width in runs]
        for path in runs[0][0]
    }
    slopes = {
        path: float(np.polyfit(np.log(WIDTHS), values, 1)[0]) for path, values in logs.items()
    }
    return max((slope, path) for path, slope in slopes.items())


def print_local(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        runs = [
            [sizes(name, width, seed, "keep") for seed in range(LOCAL_SEEDS)]
            for width in LOCAL_WIDTHS
        ]
        x = np.log(LOCAL_WIDTHS)
        logs = {
            path: np.array([[math.log(run[path]) for run in at_width] for at_width in runs])
            for path in runs[0][0]
        }
        slopes = {
            path: np.polyfit(x[: len(WIDTHS)], values[: len(WIDTHS)], 1)[0]
            for path, values in logs.items()
        }
        path = max(slopes, key=lambda path: slopes[path].mean())
        local = np.diff(logs[path], axis=0) / np.diff(x)[:, None]
        root = LOCAL_SEEDS**0.5
        steps = [f"{part.mean():+.2f} ± {part.std(ddof=1) / root:.2f}" for part in local]
        whole = slopes[path]
        print(f"{name}, {path}: widths {WIDTHS[0]} to {WIDTHS[-1]}", end=" ")
        print(f"{whole.mean():+.3f} ± {whole.std(ddof=1) / root:.3f}; between neighbours", end=" ")
        print(", ".join(steps), flush=True)


def main(names: list[str], columns: dict[str, str | None]) -> None:
    torch.set_num_threads(1)
    print("| model | " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * len(columns), flush=True)
    for name in names:
        cells: list[str] = []
        for start in columns.values():
            try:
                slope, path = worst_slope(name, start)
            except o1.InputError as error:  # a start that this model cannot have
                cells.append(str(error.code))
                continue
            cells.append(f"n^{slope:+.2f}" + f" ({path})" * (start not in (None, "keep")))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    columns: dict[str, str | None] = {"without a plan": None, "with a plan": "keep"}
    if "--starts" in arguments:
        arguments.remove("--starts")
        columns = {start: start for start in STARTS}
    if "--local" in arguments:
        arguments.remove("--local")
        print_local(arguments or list(MODELS))
    else:
        main(arguments or list(MODELS), columns)
