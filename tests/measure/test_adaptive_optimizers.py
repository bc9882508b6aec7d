"""Optimizers that normalize each entry of the gradient: they are planned like Adam, a healthy model
passes the check, and a stack gives the losses of stand-alone runs."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import orderone as o1
from orderone.core.errors import code_of
from orderone.optimizers.table import ALGORITHMS, CLASSES, default_of
from orderone.training.stacked.stack import Stack

LR = {"rmsprop": 1e-3, "nadam": 2e-3, "adagrad": 1e-2}  # of the check
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("rmsprop", {}),
    ("rmsprop", {"centered": True}),
    ("rmsprop", {"momentum": 0.9, "alpha": 0.9}),
    ("nadam", {}),
    ("nadam", {"decoupled_weight_decay": True}),
    ("nadam", {"betas": (0.8, 0.95), "momentum_decay": 0.1}),
    ("adagrad", {}),
    ("adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.01}),
]
INPUTS = 8
CLASSES_OF_DATA = 4
MEMBERS = 3
STEPS = 10


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES_OF_DATA),
    )


def batch(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, INPUTS, dtype=dtype, generator=generator)
    return inputs, torch.randint(CLASSES_OF_DATA, (16,), generator=generator)


@pytest.mark.parametrize("optimizer", LR)
def test_the_record_has_the_defaults_of_torch(optimizer):
    record = ALGORITHMS[optimizer]
    for setting in ("lr", "weight_decay", "eps"):
        assert getattr(record, setting) == default_of(CLASSES[optimizer], setting)


@pytest.mark.parametrize("rule", ["mup", "sp", "ntk", "mf"])
@pytest.mark.parametrize("optimizer", LR)
def test_the_plan_is_that_of_adam(optimizer, rule):
    model = mlp(64)
    base = mlp(16)
    settings = {"base": base, "rule": rule, "lr": 1e-3, "weight_decay": 0.1, "eps": 1e-8}
    plan = o1.plan(model, optimizer=optimizer, **settings)
    adam = o1.plan(model, optimizer="adam", **settings)
    for row, expected in zip(plan.rows, adam.rows, strict=True):
        assert row.optimizer == optimizer
        assert row.factors == expected.factors
        assert row.lr == expected.lr
        assert row.weight_decay == expected.weight_decay
        assert row.eps == expected.eps
    assert len({row.lr for row in plan.rows}) > 1 or rule == "sp"


@pytest.mark.parametrize("optimizer", LR)
def test_a_healthy_model_passes_the_check(optimizer):
    check = o1.coord_check(
        mlp,
        widths=[64, 128, 256, 512],
        optimizer=optimizer,
        lr=LR[optimizer],
        batches=[batch(k) for k in range(4)],
        loss=functional.cross_entropy,
        steps=4,
        seeds=3,
    )
    assert check.passed, str(check)


@pytest.mark.parametrize("optimizer", LR)
def test_without_the_rule_the_check_fails(optimizer):
    check = o1.coord_check(
        mlp,
        widths=[64, 128, 256, 512],
        rule="sp",
        optimizer=optimizer,
        lr=LR[optimizer],
        batches=[batch(k) for k in range(4)],
        loss=functional.cross_entropy,
        steps=4,
        seeds=3,
    )
    assert not check.passed, str(check)


@pytest.mark.parametrize("optimizer", LR)
def test_an_optimizer_of_the_user_is_judged_by_its_record(optimizer):
    def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = mlp(width)
        return model, CLASSES[optimizer](model.parameters(), lr=LR[optimizer])  # pyright: ignore[reportCallIssue]

    check = o1.coord_check(
        build,
        widths=[16, 32, 64],
        batches=[batch(0)],
        loss=functional.cross_entropy,
        steps=1,
        seeds=1,
    )
    assert check.provenance["optimizer"] == optimizer
    assert "optimizer-judged-as" not in map(code_of, check.notes)


@pytest.mark.parametrize(("optimizer", "options"), OPTIONS)
def test_a_stack_has_the_losses_of_stand_alone_runs(optimizer, options):
    kind: Any = CLASSES[optimizer]
    dtype = torch.float64
    models = []
    optimizers = []
    expected = []
    for member in range(MEMBERS):
        torch.manual_seed(member)
        model = mlp(32).to(dtype)
        plan = o1.plan(
            model,
            base=mlp(16).to(dtype),
            optimizer=optimizer,
            lr=1e-3 * 2**member,
            weight_decay=0.1 + member,
        )
        plan.apply()
        single = copy.deepcopy(model)
        groups = plan.attach(single).param_groups()
        expected.append(train(single, kind(groups, **options), member))
        models.append(model)
        optimizers.append(kind(plan.attach(model).param_groups(), **options))
    stack = Stack(models, optimizers, loss=functional.cross_entropy)
    losses = []
    for step in range(STEPS):
        batches = [batch(STEPS * member + step, dtype) for member in range(MEMBERS)]
        inputs, targets = zip(*batches, strict=True)
        losses.append(stack.step((torch.stack(inputs), torch.stack(targets))))
    assert torch.allclose(torch.stack(losses), torch.stack(expected, 1), rtol=1e-9, atol=0)
    assert not torch.allclose(expected[0], expected[1], rtol=1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, member: int) -> torch.Tensor:
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(STEPS * member + step, torch.float64)
        loss = functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def adagrad_exponent(start: float, step: int) -> float:
    """Return e such that hidden updates of Adagrad at this step have size n^e."""
    widths = (64, 128, 256)
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
    sizes = []
    for n in widths:
        torch.manual_seed(0)
        inp, hid, out = nn.Linear(16, n), nn.Linear(n, n), nn.Linear(n, 3)
        model = nn.Sequential(inp, nn.ReLU(), hid, nn.ReLU(), out)
        with torch.no_grad():
            out.weight.mul_((64 / n) ** 0.5)
        options: dict[str, Any] = {"lr": 1e-6, "initial_accumulator_value": start}
        optimizer = torch.optim.Adagrad(model.parameters(), **options)
        before = hid.weight.detach().clone()
        for _ in range(step):
            before = hid.weight.detach().clone()
            optimizer.zero_grad()
            functional.cross_entropy(model(x), torch.arange(32) % 3).backward()
            optimizer.step()
        sizes.append((hid.weight.detach() - before).square().mean().sqrt().log())
    logs = torch.tensor(widths, dtype=torch.float32).log()
    logs -= logs.mean()
    return float((logs * torch.stack(sizes)).sum() / logs.square().sum())


def test_adagrad_changes_from_the_law_of_sgd_to_that_of_adam():
    assert adagrad_exponent(0.0, 1) == pytest.approx(0, abs=0.1)
    assert adagrad_exponent(1e-4, 1) < -0.7
    assert -0.6 < adagrad_exponent(1e-4, 150) < -0.1
    assert adagrad_exponent(1.0, 50) < -0.9
