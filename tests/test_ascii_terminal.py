"""Names of tensors may have any characters, and a terminal may know ASCII only."""

import io
import sys

import torch
from support.sweep_subjects import batch
from torch import nn

import orderone as o1


class Net(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.größe = nn.Linear(4, width)
        self.ω = nn.Linear(width, width)
        self.окно = nn.Linear(width, 3)

    def forward(self, x):
        return self.окно(torch.relu(self.ω(torch.relu(self.größe(x)))))


def test_everything_that_is_printed_can_be_printed(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    plan = o1.plan(Net(32), base=Net(16), lr=1e-2)
    print(plan, plan.table(wide=True))
    check = o1.coord_check(Net, widths=[16, 32], batches=batch(0, 0), steps=2, seeds=1, lr=1e-2)
    print(check)
    check.explain("größe")
    sweep = o1.sweep(
        lambda width, größe: Net(width),
        space={"lr": [1e-3, 1e-2], "größe": [1], "seed": range(2)},
        widths=[16, 32],
        data=batch,
        steps=2,
        progress=False,
    )
    print(sweep, sweep.transfer())
    text = terminal.buffer.getvalue().decode("ascii")
    assert "gr\\xf6\\xdfe" in text
