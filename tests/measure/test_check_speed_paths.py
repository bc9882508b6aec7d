"""What makes a check fast does not change its numbers: shared states, and sizes piece by piece."""

# pyright: reportCallIssue=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.measure import spare_state
from orderone.measure.spare_state import SpareState
from orderone.observe import moments
from orderone.observe.moments import Moments

WIDTHS = (32, 64, 288)  # the tensors of the largest have several pieces


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )


def check(**options: object) -> o1.measure.Check:
    torch.manual_seed(0)
    batch = torch.randn(16, 20), torch.randint(0, 4, (16,))
    return o1.coord_check(
        build, WIDTHS, **{"lr": 1e-2, "batches": batch, "steps": 3, "seeds": 3, **options}
    )


def whole(count: int, x: Tensor) -> Moments:
    """Size a tensor in one piece and in double precision."""
    values = x.double().numpy().ravel()
    squares, largest = float(values @ values), float(np.abs(values).max())
    return Moments(count, squares, float(values.sum()), largest, float(count))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_shared_state_changes_no_bit(monkeypatch, optimizer, weight_decay):
    lent: list[bool] = []
    lend = SpareState.lend

    def counted(self: SpareState, made: torch.optim.Optimizer) -> None:
        lend(self, made)
        lent.append(bool(made.state))

    monkeypatch.setattr(SpareState, "lend", counted)
    shared = check(optimizer=optimizer, weight_decay=weight_decay)
    assert lent == [False, True, True]
    monkeypatch.setattr(SpareState, "lend", lambda self, made: None)
    fresh = check(optimizer=optimizer, weight_decay=weight_decay)
    assert shared.frame.equals(fresh.frame)
    assert shared.losses.equals(fresh.losses)
    assert shared.exponents.equals(fresh.exponents)


def test_records_and_verdicts_are_those_of_sizes_in_double_precision(monkeypatch):
    fast = check()
    monkeypatch.setattr(moments, "_here", whole)
    exact = check()
    keys = ["width", "seed", "step", "module", "quantity"]
    assert fast.frame[keys].equals(exact.frame[keys])
    assert np.allclose(fast.frame["rms"], exact.frame["rms"], rtol=1e-6)
    assert fast.frame["max"].equals(exact.frame["max"])
    assert np.allclose(fast.frame["mean"], exact.frame["mean"], rtol=0, atol=1e-6 * fast.frame.rms)
    assert fast.exponents.verdict.equals(exact.exponents.verdict)
    for line, other in zip(fast.judgements, exact.judgements, strict=True):
        assert line.exponent == pytest.approx(other.exponent, abs=1e-6, nan_ok=True)


def trained(model: nn.Module, kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.ones(2, 20)).square().mean().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("kind", sorted(spare_state.STARTS_AT_ZERO, key=lambda k: k.__name__))
def test_a_lent_state_is_zero_and_uses_the_same_memory(kind):
    spare = SpareState()
    first = trained(build(32), kind)
    places = {id(value) for state in first.state.values() for value in state.values()}
    spare.keep(first)
    second = kind(build(32).parameters(), lr=0.1)
    spare.lend(second)
    values = [value for state in second.state.values() for value in state.values()]
    assert {id(value) for value in values} == places
    assert all(math.isclose(float(value.abs().max()), 0.0) for value in values)
    third = kind(build(32).parameters(), lr=0.1)
    spare.lend(third)  # it is lent once
    assert not third.state


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (torch.optim.Adam, build(64)),
        (torch.optim.Adam, build(32).double()),
        (torch.optim.SGD, build(32)),
        (type("Mine", (torch.optim.Adam,), {}), build(32)),
    ],
)
def test_a_state_of_another_kind_is_not_lent(kind, other):
    spare = SpareState()
    spare.keep(trained(build(32), torch.optim.Adam))
    optimizer = kind(other.parameters(), lr=0.1)
    spare.lend(optimizer)
    assert not optimizer.state
