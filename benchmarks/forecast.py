"""Forecasts of real trainings: the loss of a width that was left out, and what it then reached.

    python benchmarks/forecast.py     # four minutes on one core

Each task is a teacher network with other weights and other samples. A student of three layers
trains on fresh samples with muP and AdamW: five widths, seven learning rates, three seeds. The
largest width is left out, `transfer` and `forecast` see the others, and the measured optimum of the
largest width is compared with the interval. The number of tasks, the sizes and the level were
chosen before the first run.
"""

from typing import Any

import torch
from torch import Tensor, nn

import orderone as o1

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
    main()
