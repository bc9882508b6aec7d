"""The search for the constants of the start: what it finds, and what it was worth."""

import math

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import nn

from orderone.sweeping.tune_start import _compared, _queries, tune_start


def build(width: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            assert isinstance(layer, nn.Linear)
            layer.weight.mul_(0.05)  # much too small
    return model


def batch(step: int, seed: int):
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1000 * seed + step))
    return x, x[:, :1] + x[:, 1:2] * x[:, 2:3]


def test_a_start_that_is_too_small_is_worth_tuning():
    tuned = tune_start(
        build,
        width=16,
        rates=[3e-3],
        seeds=range(3),
        trials=12,
        data=batch,
        steps=30,
        init={"default": "keep", "readout": 0.05},
        device="cpu",
        progress=False,
        verify=False,
    )
    assert tuned.gain > 0
    assert tuned.gain == pytest.approx(tuned.before - tuned.after)
    assert set(tuned.settings) == {
        "lr",
        "init_scale.embedding",
        "lr.embedding",
        "init_scale.readout",
        "lr.readout",
    }
    # the scales belong to this start
    assert tuned.code.startswith('init={"default": "keep", "readout": 0.05}, lr={"default": 0.003')
    assert 'init_scale={"embedding": ' in tuned.code
    assert str(tuned).startswith("tuned start at width 16: gain +")


def test_the_gain_is_that_by_seed():
    before = np.array([1.0, 2.0, 3.0])
    tuned = _compared(16, 1e-2, {"lr": 1e-2}, before, before - 0.1, 4)
    assert (tuned.gain, tuned.low, tuned.high) == pytest.approx((0.1, 0.1, 0.1))
    noisy = _compared(16, 1e-2, {"lr": 1e-2}, before, before[::-1], 4)
    assert not noisy.is_worth_it
    assert "not certain" in str(noisy)
    assert math.isclose(noisy.gain, 0, abs_tol=1e-12)


def test_queries_are_found_by_their_names():
    model = nn.ModuleDict({"a": nn.ModuleDict({"q_proj": nn.Linear(2, 2), "k": nn.Linear(2, 2)})})
    assert _queries(model) == ["*.q_proj.weight"]


def test_one_seed_is_refused():
    with refuses("needs-more-seeds", argument="seeds"):
        tune_start(build, width=16, rates=[1e-2], seeds=[0], data=batch, steps=2)
