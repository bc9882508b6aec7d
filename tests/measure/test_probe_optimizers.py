"""The probe with all kinds of optimizers, and the measurement of weight decay."""

import copy
from collections.abc import Callable

import pytest
import torch
from probe_oracle import (
    compare,
    sizes,
    squares,
    table,
    twins,
    zoo_loss,
)
from support.zoo import CLASSES, ZOO
from torch import Tensor, nn

import orderone as o1
from orderone.measure.runs import decay_of


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return o1.plan(model, base=ZOO["mlp"].build(32), optimizer="muon", lr=1e-2).optimizer()


def lion(model: nn.Module) -> torch.optim.Optimizer:
    return o1.plan(model, base=ZOO["mlp"].build(32), optimizer="lion", lr=1e-3).optimizer()


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov, which writes into gradients": lambda m: torch.optim.SGD(
        m.parameters(), 0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "adamw fused": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, fused=True),
    "adamw foreach": lambda m: torch.optim.AdamW(m.parameters(), 1e-2, foreach=True),
    "muon": muon,
    "lion": lion,
    "some parameters": lambda m: torch.optim.Adam(list(m.parameters())[2:4], 1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    frame = compare(
        lambda: ZOO["mlp"].build(32), zoo_loss(ZOO["mlp"]), OPTIMIZERS[name], steps=3, rel=1e-4
    )
    still = frame[(frame["quantity"] == "update") & (frame["rms"] == 0)]["module"]
    assert (
        set(still)
        == {
            "net.0.weight",
            "net.0.bias",
            "net.4.weight",
            "net.4.bias",
            "net.6.weight",
            "net.6.bias",
        }
    ) == (name == "some parameters")


def test_a_closure_is_called_within_the_step():
    model, other = twins(lambda: nn.Linear(6, 3))
    calls = []
    optimizers = [torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3) for m in (model, other)]

    def closure(m: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = squares(m, 0)
        loss.backward()
        return loss

    with o1.probe(model, optimizers[0]) as p:
        for _ in range(2):
            optimizers[0].step(lambda: closure(model, optimizers[0]))
    found = table(p.frame)
    assert len(calls) > 2
    for step in range(2):
        before, passed = {name: x.detach().clone() for name, x in other.named_parameters()}, []
        hook = other.register_forward_hook(
            lambda m, a, y, passed=passed: passed.append(y.detach().clone())
        )
        optimizers[1].step(lambda: closure(other, optimizers[1]))
        hook.remove()
        assert found[step, "", "output"] == pytest.approx(sizes(*passed), rel=1e-5, abs=1e-6)
        for name, parameter in other.named_parameters():
            assert found[step, name, "weight"] == pytest.approx(
                sizes(before[name]), rel=1e-5, abs=1e-7
            )
            assert found[step, name, "gradient"] == pytest.approx(
                sizes(parameter.grad), rel=1e-5, abs=1e-7
            )
            update = parameter.detach() - before[name]
            assert found[step, name, "update"] == pytest.approx(sizes(update), rel=1e-4, abs=1e-7)


# --- decay ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e-1, 1e-3, 1e-4])
def test_even_weak_decay_is_measured(rate):
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    before = copy.deepcopy(model.state_dict())
    found = decay_of(model, optimizer).fractions
    assert set(found) == {"weight", "bias"}
    assert [m.rms for m in found.values()] == pytest.approx([0.01 * rate] * 2, rel=1e-3)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not optimizer.state


def test_a_penalty_is_no_decay():
    model = nn.Linear(30, CLASSES)
    found = decay_of(model, torch.optim.Adam(model.parameters(), 1e-2, weight_decay=0.1))
    assert found.fractions == {}
    sizes = {
        name: 0.1 * float(p.detach().square().mean().sqrt()) for name, p in model.named_parameters()
    }
    assert found.penalties == pytest.approx(sizes)
    assert (
        decay_of(model, torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)).fractions
        == {}
    )
