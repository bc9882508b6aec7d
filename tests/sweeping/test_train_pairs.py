"""`train` and `plan` with what a `build` function returns: (model, optimizer)."""

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 3


def build(width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def test_a_pair_is_trained_as_model_and_optimizer():
    model, optimizer = build(16)
    apart = o1.train(model, (X, Y), steps=3, optimizer=optimizer, device="cpu")
    together = o1.train(build(16), (X, Y), steps=3, device="cpu")
    assert together.losses.tolist() == apart.losses.tolist()
    assert isinstance(together.optimizer, torch.optim.AdamW)


def test_a_plan_and_its_optimizer_are_a_pair():
    plan = o1.plan(build(16)[0], base=build(8)[0], lr=0.01)
    plan.apply()
    trained = o1.train((plan, plan.optimizer()), (X, Y), steps=2, device="cpu")
    assert len(trained.losses) == 2


def test_two_optimizers_are_refused():
    model, optimizer = build(16)
    with refuses("optimizer-given-twice", argument="optimizer"):
        o1.train((model, optimizer), (X, Y), steps=1, optimizer=optimizer)


@pytest.mark.parametrize("rest", [(), (None,), (1, 2)])
def test_other_tuples_are_refused(rest):
    with refuses("wrong-type", argument="model") as caught:
        o1.train((build(16)[0], *rest), (X, Y), steps=1)  # pyright: ignore[reportArgumentType]
    assert "(module, optimizer)" in str(caught.value)


def test_a_plan_of_a_pair_says_what_to_pass():
    with refuses("wrong-type", argument="model") as caught:
        o1.plan(build(16), base=build(8)[0])  # pyright: ignore[reportArgumentType]
    assert "optimizer=torch.optim.AdamW" in str(caught.value)
    with refuses("wrong-type", argument="base") as caught:
        o1.plan(build(16)[0], base=build(8))  # pyright: ignore[reportArgumentType]
    assert "optimizer=torch.optim.AdamW" in str(caught.value)


def test_a_result_prints_in_one_line():
    trained = o1.train(build(16), (X, Y), steps=3, device="cpu")
    assert repr(trained).startswith("<Trained 3 updates in ")
    assert f"{trained.loss:.4g}" in repr(trained)
    assert len(repr(trained)) < 100
    lost = o1.train(build(16), (X * 1e30, Y), steps=3, device="cpu", clip=None, held_out=[(X, Y)])
    assert "held-out loss" in repr(lost) or "diverged" in repr(lost)
