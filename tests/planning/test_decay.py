"""Which tensors decay, and how the optimizer applies weight decay."""

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1


def net(width):
    return nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.Linear(width, 2))


def decays(plan):
    return {row.name: row.weight_decay for row in plan.rows}


@pytest.mark.parametrize("base", [net(16), "absolute"])
def test_gains_and_biases_decay_as_in_torch_unless_switched_off(base, tmp_path):
    every = o1.plan(net(64), base=base, lr=1e-3, weight_decay=0.1)
    assert all(decays(every).values())
    spared = o1.plan(net(64), base=base, lr=1e-3, weight_decay=0.1, decay_vectors=False)
    for row in spared.rows:
        assert row.weight_decay == (0 if len(row.shape) < 2 else decays(every)[row.name])
    groups = spared.optimizer().param_groups
    assert {p.dim() for group in groups for p in group["params"] if group["weight_decay"]} == {2}
    assert "decay_vectors=False" in str(spared)
    assert "decay_vectors" not in str(every)
    spared.save(tmp_path / "plan.json")
    assert not o1.Plan.load(tmp_path / "plan.json").settings.decay_vectors


def test_a_sweep_takes_the_switch():
    def batch(step, seed):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        return x, x[:, :2]

    settings = {"widths": [8, 16], "data": batch, "steps": 20, "loss": nn.functional.mse_loss}
    losses = []
    for decay_vectors in (True, False):
        sweep = o1.sweep(
            net,
            space={"lr": [0.1], "weight_decay": [1.0]},
            decay_vectors=decay_vectors,
            **settings,
        )
        losses.append(sorted(sweep.frame["loss"]))
    assert losses[0] != losses[1]


@pytest.mark.parametrize("name", ["adam", "nadam"])
def test_an_option_that_changes_the_kind_of_decay_is_refused(name):
    plan = o1.plan(net(64), base=net(16), optimizer=name, lr=1e-3, weight_decay=0.1)
    with refuses("other-weight-decay", argument="optimizer"):
        plan.optimizer(decoupled_weight_decay=True)
    plan.optimizer(decoupled_weight_decay=False)
