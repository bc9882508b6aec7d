"""Inputs that join growing and fixed entries, and outputs on which the loss does not depend."""

import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.measure.judge.verdict import Verdict
from orderone.observe.quantities import Quantity

WIDTHS = (32, 64, 128, 256)
GENERATOR = torch.Generator().manual_seed(0)
BATCH = (torch.randn(24, 32, generator=GENERATOR), torch.arange(24) % 6)


class Joined(nn.Module):
    """A layer reads features and, once more, the inputs: an action, a position, an image."""

    power = 0.0

    def __init__(self, width: int):
        super().__init__()
        self.factor = (width / WIDTHS[0]) ** self.power
        self.first = nn.Linear(32, width)
        self.hidden = nn.Linear(width, width)
        self.joined = nn.Linear(width + 32, width)
        self.last = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.hidden(torch.relu(self.first(x)))) * self.factor
        return self.last(torch.relu(self.joined(torch.cat([features, x], -1))))


class JoinedTooSmall(Joined):
    power = -0.5


def by_hand(network: type[nn.Module]):
    def build(width: int):
        model = network(width)
        plan = o1.plan(
            model, base=network(WIDTHS[0]), optimizer="sgd", lr=0.02, probe=False, weight_decay=0.0
        )
        plan.apply()
        return model, plan.optimizer()

    return build


def check(network: type[nn.Module], law: str) -> o1.measure.Check:
    return o1.coord_check(
        network, WIDTHS, optimizer=law, lr=1e-2, batches=BATCH, seeds=4, weight_decay=0.0
    )


@pytest.mark.parametrize("law", ["sgd", "adam"])
def test_fixed_entries_of_an_input_do_not_fail(law):
    result = check(Joined, law)
    [line] = [
        line
        for line in result.judgements
        if line.module == "joined" and line.quantity == Quantity.INPUT
    ]
    assert line.exponent < -0.25  # fixed entries make it shrink at these widths
    assert line.verdict != Verdict.FAIL
    assert result.verdict != Verdict.FAIL


def test_features_that_shrink_beside_fixed_entries_fail():
    result = o1.coord_check(
        by_hand(JoinedTooSmall), WIDTHS, optimizer="sgd", batches=BATCH, seeds=4
    )
    assert result.verdict == Verdict.FAIL
    assert code_of(result.causes[0]) in ("shrinking-output", "shrinking-input")


class Dueling(nn.Module):
    """The value is added to all classes, so that softmax cancels it."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(32, width)
        self.hidden = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.hidden(torch.relu(self.first(x))))
        return self.value(x) + self.advantage(x)


@pytest.mark.parametrize("law", ["adafactor", "sgd"])
def test_an_output_without_gradient_need_not_learn(law):
    result = check(Dueling, law)
    values = [
        line
        for line in result.judgements
        if line.module == "value" and line.quantity == Quantity.CHANGE
    ]
    assert any(line.exponent < -0.25 for line in values)
    assert all(line.verdict != Verdict.FAIL for line in values)
    assert result.verdict != Verdict.FAIL
