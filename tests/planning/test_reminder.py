"""A warning at the first step if the optimizer of a plan is used without `apply`."""

import copy
import warnings

import pytest
import torch
from torch import nn

import orderone as o1


def net(width):
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def step(model, optimizer):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_the_first_step_without_apply_warns_and_the_second_does_not(optimizer):
    model = net(64)
    made = o1.plan(model, net(16), lr=1e-3, optimizer=optimizer).optimizer()
    with pytest.warns(UserWarning, match=r"plan\.apply\(\) .*\[plan-not-applied\]$"):
        step(model, made)
    step(model, made)  # warnings are errors here


def test_apply_may_come_after_the_optimizer():
    model = net(64)
    plan = o1.plan(model, net(16), lr=1e-3)
    made = plan.optimizer()
    plan.apply()
    step(model, made)
    again = o1.plan(net(64), net(16), lr=1e-3)
    twin = again.apply()
    step(twin, again.optimizer())


def test_a_plan_that_changes_nothing_needs_no_apply():
    model = net(64)
    step(model, o1.plan(model, copy.deepcopy(model), lr=1e-3).optimizer())


def test_other_hooks_still_run():
    model = net(64)
    made = o1.plan(model, net(16), lr=1e-3).optimizer()
    with o1.probe(model, made) as probe, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            step(model, made)
    assert set(probe.frame.step) == {0, 1}
