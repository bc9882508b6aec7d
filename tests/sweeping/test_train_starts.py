"""Starts in `train`: unmodified Hugging Face models begin as `plan.apply` draws them, bit for bit.

Also with a plan from a file, and after an interruption.
"""

# pyright: reportArgumentType=false

import os
import signal

import pytest
import torch
from support import hf_families
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.seeding import seeded, start_seed

FAMILIES = ("llama", "gpt2", "vit", "t5")
STARTS = ("keep", "fan-in", "zero-residual", "completep", {"default": "xavier", "embedding": 0.5})


def built(family: str, width: int, seed: int = 0) -> nn.Module:
    with seeded(seed):
        return hf_families.build(family, width)


def planned(family: str, init: object, width: int = 16, seed: int = 0) -> o1.Plan:
    return o1.plan(built(family, width, seed), base=built(family, 8, seed=7), lr=1e-2, init=init)


def differing(one: nn.Module, other: nn.Module) -> list[str]:
    theirs = dict(other.named_parameters())
    return [n for n, value in one.named_parameters() if not torch.equal(value, theirs[n])]


def trained_without_steps(plan: o1.Plan, family: str, seed: int = 3) -> nn.Module:
    data = hf_families.batch_of(family)
    return o1.train(plan, data, 1, seed=seed, schedule=lambda _step: 0.0, device="cpu").model


@pytest.mark.parametrize("init", STARTS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_training_begins_with_the_values_of_apply(family, init, tmp_path):
    by_hand = planned(family, init)
    with seeded(start_seed(3)):
        by_hand.apply()
    model = by_hand.bound()
    assert differing(trained_without_steps(planned(family, init), family), model) == []
    assert differing(trained_without_steps(by_hand, family, seed=4), model) == []
    planned(family, init).save(tmp_path / "plan.json")
    loaded = o1.plan(built(family, 16), base=tmp_path / "plan.json", lr=1e-2)
    assert differing(trained_without_steps(loaded, family), model) == []
    if init != "keep":
        other = trained_without_steps(planned(family, init), family, seed=5)
        assert differing(other, model) != []


@pytest.mark.parametrize("family", FAMILIES)
def test_an_interrupted_training_continues_with_its_own_values(family, tmp_path, monkeypatch):
    def data(step: int, seed: int) -> dict:
        if step == 2 and os.environ.pop("ORDERONE_TEST_INTERRUPT", None):
            os.kill(os.getpid(), signal.SIGINT)
        return hf_families.batch_of(family)(step, seed)

    options = {"seed": 3, "device": "cpu", "checkpoint": tmp_path / "c.safetensors"}
    whole = o1.train(planned(family, "fan-in"), data, 4, seed=3, device="cpu")
    monkeypatch.setenv("ORDERONE_TEST_INTERRUPT", "1")
    with pytest.raises(KeyboardInterrupt):
        o1.train(planned(family, "fan-in"), data, 4, **options)
    # other initial values: those of the checkpoint count
    continued = o1.train(planned(family, "fan-in", seed=5), data, 4, **options)
    assert differing(continued.model, whole.model) == []
    assert list(continued.losses) == list(whole.losses)


def test_wrong_names_are_refused_with_the_right_ones():
    with refuses("unknown-name", argument="init") as caught:
        planned("llama", "fanin")
    assert "fan-in" in str(caught.value)
    with refuses("unknown-name", argument="init") as caught:
        planned("llama", {"default": "fan-in", "readouts": "zero"})
    assert "'readout'" in str(caught.value)
