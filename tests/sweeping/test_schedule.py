"""Schedules are factors: the law of each shape, and the ratios of a real plan over a whole run."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refuses
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import orderone as o1
from orderone.training.schedule import SHAPES, schedule

SOME = pytest.mark.parametrize("name", SHAPES)


@given(st.sampled_from(sorted(SHAPES)), st.integers(1, 500), st.data())
def test_rises_to_one_then_never_rises_and_ends_at_final(name, steps, data):
    warmup, final = data.draw(st.integers(0, steps)), data.draw(st.floats(0, 1))
    f = schedule(name, steps, warmup, final)
    values = [f(t) for t in range(steps + 3)]
    assert all(0 <= x <= 1 + 1e-12 for x in values)
    rising, falling = values[:warmup], values[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    if warmup:
        assert values[warmup - 1] == 1
    if warmup < steps:
        assert values[warmup] == pytest.approx(1)
        assert values[-1] == pytest.approx(1 if name == "constant" else final)


def test_cosine_equals_that_of_torch():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs, ours = CosineAnnealingLR(optimizer, T_max=50), schedule("cosine", 50)
    for step in range(50):
        assert theirs.get_last_lr()[0] == pytest.approx(ours(step), abs=1e-12)
        optimizer.step()
        theirs.step()


def test_linear_in_closed_form():
    f = schedule("linear", 110, warmup=10, final=0.1)
    assert [f(0), f(9), f(10), f(60), f(110)] == pytest.approx([0.1, 1, 1, 0.55, 0.1])


@SOME
def test_keeps_the_ratios_of_a_plan(name):
    plan = o1.plan(_network(64), base=_network(16), lr=0.01)
    optimizer = plan.optimizer()
    plan.check(optimizer, LambdaLR(optimizer, schedule(name, 100, warmup=5, final=0.1)))


def test_an_absolute_minimum_would_break_the_ratios():
    plan = o1.plan(_network(64), base=_network(16), lr=0.01)
    optimizer = plan.optimizer()
    with pytest.raises(o1.BrokenRatios, match="eta_min"):
        plan.check(optimizer, CosineAnnealingLR(optimizer, T_max=100, eta_min=1e-3))


def _network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


def test_a_schedule_can_be_pickled():
    f = schedule("cosine", 100, 10)
    assert pickle.loads(pickle.dumps(f)) == f


def test_a_function_is_a_schedule():
    assert schedule(lambda t: math.exp(-t), 10)(1) == math.exp(-1)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        (("cosine", 0), "steps"),
        (("cosine", 10, -1), "warmup"),
        (("cosine", 10, 0, 1.5), "final"),
        (("linear", 10, 0, math.nan), "final"),
        ((lambda t: math.nan, 10), "schedule(0)"),
    ],
)
def test_wrong_numbers_are_named(arguments, argument):
    with refuses("invalid-argument", argument=argument):
        schedule(*arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "words"),
    [
        (("cosin", 10), "unknown-name", "schedule", "'cosine'?"),
        (("cosine", 10, 11), "invalid-argument", "warmup", "at most steps = 10, got 11"),
        ((lambda t: 1.0, 10, 3), "invalid-argument", "warmup", "function"),
    ],
)
def test_wrong_schedules_are_named(arguments, code, argument, words):
    with refuses(code, argument=argument) as caught:
        schedule(*arguments)
    assert words in str(caught.value)
