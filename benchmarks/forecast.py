"""Forecasts of real trainings: the loss of a width that was left out, and what it then reached.

    python benchmarks/forecast.py               # four minutes on one core
    python benchmarks/forecast.py coverage      # simulated losses, one minute

Each task is a teacher network with other weights and other samples. A student of three layers
trains on fresh samples with muP and AdamW: five widths, seven learning rates, three seeds. The
largest width is left out, `transfer` and `forecast` see the others, and the measured optimum of the
largest width is compared with the interval. The number of tasks, the sizes and the level were
chosen before the first run.

`coverage` draws losses of four widths and three seeds from known laws, and counts the 95 %
intervals that contain the loss at four times the largest width: with the factor of `power_law` that
makes intervals wider where residuals exceed the noise of seeds, and without it.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.sweeping.power_law import PowerLaw

WIDTHS = (16, 32, 64, 128, 256)
TASKS = 6
STEPS = 300
ROWS = 64
SPACE = {"lr": o1.log_grid(1e-3, 6.4e-2, 7), "seed": range(3)}


def student(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


def teacher(task: int) -> nn.Module:
    torch.manual_seed(10_000 + task)
    return nn.Sequential(nn.Linear(16, 512), nn.Tanh(), nn.Linear(512, 1)).requires_grad_(False)


def sweep(task: int) -> o1.Sweep:
    label = teacher(task)

    def batch(step: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * task + 1009 * seed + step)
        x = torch.randn(ROWS, 16, generator=generator)
        return x, 3 * label(2 * x)

    return o1.sweep(student, space=SPACE, widths=WIDTHS, data=batch, steps=STEPS)


LAWS = {
    "1.2 + 3 n^-0.3": lambda n: 1.2 + 3 * n**-0.3,
    "1.2 + 3 n^-0.6": lambda n: 1.2 + 3 * n**-0.6,
    "1.5 + 10 / n": lambda n: 1.5 + 10 / n,
    "5 n^-0.2": lambda n: 5 * n**-0.2,
    "2": lambda n: 2 + 0 * n,
    "1 + 50 n^-2": lambda n: 1 + 50 * n**-2.0,
    "1 + 3 n^-0.5, larger by 0.05 above 200": lambda n: 1 + 3 * n**-0.5 + 0.05 * (n > 200),
}
SIMULATED = np.array([64.0, 128.0, 256.0, 512.0])
NOISE = 0.02
SEEDS = 3


class WithoutFactor(PowerLaw):
    def _excess(self, chi2: float) -> float:
        return 1.0


def coverage(kind: type[PowerLaw], law: Any, number: int = 400) -> float:
    """Return the share of intervals that contain the loss of the law."""
    rng = np.random.default_rng(26)
    target = 4 * SIMULATED[-1]
    inside = 0
    for _ in range(number):
        noise = NOISE * rng.standard_normal((len(SIMULATED), SEEDS))
        losses = law(SIMULATED)[:, None] + noise
        variances = np.full(len(SIMULATED), losses.var(1, ddof=1).mean() / SEEDS)
        freedom = float(len(SIMULATED) * (SEEDS - 1))
        value = kind(SIMULATED[:, None], losses.mean(1), variances, freedom).at([target])
        inside += value.low <= law(target) <= value.high
    return inside / number


def print_coverage() -> None:
    for name, law in LAWS.items():
        both = (coverage(PowerLaw, law), coverage(WithoutFactor, law))
        print(f"{name:40s} with the factor {both[0]:.3f}, without {both[1]:.3f}", flush=True)


def main() -> None:
    inside = 0
    for task in range(TASKS):
        frame = sweep(task).frame
        others: Any = frame[frame["width"] < WIDTHS[-1]]
        smaller = o1.Transfer.from_frame(others)
        forecast = smaller.forecast(width=WIDTHS[-1])
        measured = o1.Transfer.from_frame(frame).optima["mup"][-1]
        hit = forecast.low <= measured.loss <= forecast.high
        inside += hit
        print(
            f"task {task}: forecast {forecast.loss:.4f} [{forecast.low:.4f}, {forecast.high:.4f}],"
            f" measured {measured.loss:.4f}, {'inside' if hit else 'outside'}",
            flush=True,
        )
    print(f"{inside} of {TASKS} inside")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["coverage"]:
        print_coverage()
    else:
        main()
