"""Constants that stay the same at every size: the space, the plans, and what a multiplier is."""

from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.sweeping.space import LogGrid


def build(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, width, bias=False),
        nn.Tanh(),
        nn.Linear(width, width, bias=False),
        nn.Tanh(),
        nn.Linear(width, 1, bias=False),
    )


def test_the_space_has_factors_around_one():
    space = o1.multipliers("embedding", "*.q_proj.weight", n=3)
    assert list(space) == ["init_scale.embedding", "init_scale.*.q_proj.weight"]
    assert space["init_scale.embedding"] == (0.25, 1.0, 4.0)
    assert isinstance(space["init_scale.embedding"], LogGrid)  # samplers draw between its ends
    with_rates = o1.multipliers("readout", low=0.5, high=2, n=3, lr=1e-2)
    assert with_rates["lr.readout"] == pytest.approx((5e-3, 1e-2, 2e-2))


@pytest.mark.parametrize(
    ("call", "code", "argument"),
    [
        (lambda: o1.multipliers(), "invalid-argument", "keys"),
        (lambda: o1.multipliers("embeding"), "unknown-name", "keys"),
        (lambda: o1.multipliers(3), "wrong-type", "keys"),  # pyright: ignore[reportArgumentType]
        (lambda: o1.multipliers("readout", low=0), "invalid-argument", "low"),
        (lambda: o1.multipliers("readout", low=2, high=1), "invalid-argument", "high"),
        (lambda: o1.multipliers("readout", lr=-1), "invalid-argument", "lr"),
    ],
)
def test_wrong_input_is_named(call, code, argument):
    with refuses(code, argument=argument):
        call()


def test_the_constants_are_the_same_at_every_size():
    constants: dict[str, Any] = {
        "init_scale": {"readout": 0.5},
        "lr": {"default": 1e-2, "readout": 5e-3},
    }
    for width in (16, 64, 256):
        tuned = o1.plan(build(width), base=build(16), **constants)["4.weight"]
        plain = o1.plan(build(width), base=build(16), lr=1e-2)["4.weight"]
        assert tuned.lr / plain.lr == pytest.approx(0.5)
        assert tuned.init_scale == 0.5


@pytest.mark.parametrize(("optimizer", "power"), [("adamw", 1), ("sgd", 2)])
def test_a_multiplier_in_the_code_is_a_pair_of_constants(optimizer, power):
    """y = m W x trains as y = V x, with the initial size times m and the rate times m^power."""
    m = 0.25

    class Multiplied(nn.Linear):
        def forward(self, input):
            return m * super().forward(input)

    def train(model: nn.Module, options: dict) -> list[float]:
        if optimizer == "adamw":
            options = options | {"eps": 1e-30}
        plan = o1.plan(model, base=build(16), optimizer=optimizer, weight_decay=0.0, **options)
        plan.apply()
        updates = plan.optimizer()
        x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        losses = []
        for _ in range(4):
            loss = (model(x) - x[:, :1]).square().mean()
            updates.zero_grad()
            loss.backward()
            updates.step()
            losses.append(loss.item())
        return losses

    rate = 1e-2
    torch.manual_seed(0)
    plain = build(32).double()
    torch.manual_seed(0)
    in_code = build(32).double()
    weight = in_code[4].weight
    in_code[4] = Multiplied(32, 1, bias=False).double()
    in_code[4].weight = weight
    folded = {
        "init_scale": {"readout": m},
        "lr": {"default": rate, "readout": rate * m**power},
    }
    by_plan = train(plain, folded)
    by_code = train(in_code, {"lr": rate})
    assert by_plan == pytest.approx(by_code, rel=1e-9)


def test_a_sweep_takes_the_space():
    def batch(step, seed):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * seed + step))
        return x, x[:, :1]

    space = {"lr": [1e-2], "seed": range(1), **o1.multipliers("readout", n=3)}
    s = o1.sweep(build, space, widths=[8, 16], data=batch, steps=2, device="cpu", progress=False)
    assert len(s.frame) == 6
    assert set(s.frame["init_scale.readout"]) == {0.25, 1.0, 4.0}
