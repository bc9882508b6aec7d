"""Sizes at initialization: few random outputs have noise, which is no finding."""

# pyright: reportArgumentType=false

import math

import pytest
import torch
from torch import nn

import orderone as o1
from orderone.planning.init_check import Observation, unexpected


class Pooled(nn.Module):
    """Four classes from a mean over positions: all samples have nearly the same features."""

    def __init__(self, width: int):
        super().__init__()
        self.read = nn.Linear(3, width)
        self.hidden = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 4)

    def forward(self, x):
        x = torch.relu(self.hidden(torch.relu(self.read(x))))
        return self.classifier(x.mean(1))


def notes(seed: int) -> list[str]:
    torch.manual_seed(seed)
    batch = torch.randn(4, 200, 3)
    plan = o1.plan(Pooled(64), base=Pooled(16), lr=1e-2, inputs=batch)
    return [note for note in plan.notes if "[unexpected-exponent]" in note and "output" in note]


def test_noise_of_four_classes_is_no_finding():
    assert not any(notes(seed) for seed in range(12))


@pytest.mark.parametrize(("outputs", "found"), [(4, False), (400, True)])
def test_the_tolerance_follows_the_number_of_outputs(outputs, found):
    """The logarithm of a root mean square of k normal numbers has the variance 1 / 2k."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randn(4000, outputs, generator=generator).square().mean(1).sqrt().log()
    noise = outputs**-0.5 / math.log(4)
    measured = float((sizes[:2000] - sizes[2000:]).std()) / math.log(4)
    assert measured == pytest.approx(noise, rel=0.15)
    observation = Observation("classifier", "output", -0.9, -0.5, noise)
    assert bool(unexpected([observation], 4.0)) == found
