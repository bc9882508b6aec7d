"""Plans that compensate a normalization of a layer's input."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1


class Normalized(nn.Module):
    """A network that divides activations by their length."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = 16 * functional.normalize(torch.relu(self.first(x)), dim=-1)
        return self.last(torch.relu(self.second(h)))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_compensated_input_is_as_predicted(optimizer):
    torch.manual_seed(0)
    inputs = torch.randn(64, 8)
    plan = o1.plan(
        Normalized(256), base=Normalized(32), inputs=inputs, optimizer=optimizer, lr=1e-2
    )
    row = plan["second.weight"]
    assert row.factors.std == pytest.approx(8**-0.5 * 8**0.5)  # fan-in and length
    assert not [note for note in plan.notes if "unexpected-exponent" in note]
    [output] = [seen for seen in plan.observations if seen.name == "second"]
    assert abs(output.observed) < 0.1
    assert output.off < 0.1


class WithGain(Normalized):
    """A gain between the division by the length and the factor that undoes it (ScaleNorm)."""

    def __init__(self, width: int, vector: bool, shift: bool):
        super().__init__(width)
        self.root = width**0.5
        self.gain = nn.Parameter(torch.ones(width if vector else 1))
        self.shift = nn.Parameter(torch.zeros(width)) if shift else 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.gain * functional.normalize(torch.relu(self.first(x)), dim=-1) + self.shift
        return self.last(torch.relu(self.second(h * self.root)))


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("shift", [False, True])
def test_a_gain_does_not_hide_that_an_input_was_normalized(vector, shift):
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    model, base = (WithGain(width, vector, shift) for width in (256, 32))
    plan = o1.plan(model, base=base, inputs=inputs, optimizer="adamw", lr=1e-2)
    row = plan["second.weight"]
    assert row.factors.std == pytest.approx(8**-0.5)  # fan-in alone
    assert row.lr == pytest.approx(1e-2 / 8)
