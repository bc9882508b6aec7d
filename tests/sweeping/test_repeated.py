"""The same seed gives the same numbers on one device: the whole path of a sweep, run twice."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from support import hf_families
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.training import deterministic

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]


def swept(device: str, precision: str, stacked: bool, **options: Any) -> np.ndarray:
    def build(width: int) -> nn.Module:
        with torch.device(device):
            return hf_families.build("gpt2", width, resid_pdrop=0.1)

    result = o1.sweep(
        build,
        space={"lr": [1e-3, 4e-3], "seed": range(2)},
        widths=[16],
        data=hf_families.batch,
        steps=3,
        precision=precision,
        device=device,
        stacked=stacked,
        progress=False,
        **options,
    )
    assert all(outcome.error is None for outcome in result.outcomes.values())
    return np.array([outcome.losses for outcome in result.outcomes.values()], float)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("device", DEVICES)
def test_two_sweeps_have_the_same_bits(device, precision, stacked):
    torch.rand(3)  # the state of the user's generator does not matter
    first = swept(device, precision, stacked)
    torch.rand(5)
    assert np.array_equal(first, swept(device, precision, stacked))


def test_deterministic_kernels_change_no_setting_of_the_user():
    seen: list[bool] = []

    def data(step: int, seed: int) -> object:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return hf_families.batch(step, seed)

    for stacked in (False, True):
        o1.sweep(
            lambda width: hf_families.build("llama", width),
            space={"lr": [1e-3, 2e-3]},
            widths=[16],
            data=data,
            steps=2,
            device="cpu",
            stacked=stacked,
            deterministic=True,
            progress=False,
        )
    assert seen
    assert all(seen)
    assert not torch.are_deterministic_algorithms_enabled()
    model = hf_families.build("llama", 16)
    plan = o1.plan(model, base=hf_families.build("llama", 8), lr=1e-3)
    seen.clear()
    o1.train(plan, data, 2, device="cpu", deterministic=True)
    assert seen
    assert all(seen)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_variable_that_comes_too_late_is_refused(monkeypatch):
    monkeypatch.delenv(deterministic.VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    gpu = torch.device("cuda")
    with (
        refuses("deterministic-too-late", argument="deterministic"),
        deterministic.deterministic_kernels(True, gpu),
    ):
        pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with deterministic.deterministic_kernels(True, torch.device("cuda")):
        assert os.environ[deterministic.VARIABLE] == ":4096:8"
    monkeypatch.delenv(deterministic.VARIABLE)
