"""Plans for SOAP, Shampoo and relatives: factors of dimensions, blocks, sides, depth and eps."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.errors import refuses
from support.registered import forgotten
from torch import nn
from torch.optim import Optimizer

import orderone as o1
from orderone.optimizers import register, shampoo, soap
from orderone.optimizers.table import algorithm
from orderone.training.fingerprint import identity

LR = 1e-2
NARROW = (64, 128)  # width and inner width
WIDE = (256, 1024)


class Preconditioned(Optimizer):
    """Stands for any matrix optimizer: a plan only reads its settings."""

    def __init__(self, params, lr=LR, eps=1e-8, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * p.grad)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with forgotten():
        yield


def mlp(sizes: tuple[int, int]) -> nn.Module:
    width, inner = sizes
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, inner), nn.ReLU(),
        nn.Linear(inner, width), nn.ReLU(), nn.Linear(width, 3),
    )  # fmt: skip


def planned(law: Any, **options: Any) -> o1.Plan:
    register(Preconditioned, law, **options)
    return o1.plan(mlp(WIDE), base=mlp(NARROW), optimizer=Preconditioned, lr=LR)


UP = {"in": 4.0, "out": 8.0}  # growth of 2.weight
DOWN = {"in": 8.0, "out": 4.0}  # growth of 4.weight


@pytest.mark.parametrize("block_size", [None, 32, 128, 4096])
@pytest.mark.parametrize("k", [0.25, 0.5])
def test_shampoo(k, block_size):
    """(d_o / d_i)^(1 - E) (b_o b_i)^-E, E = 2 k."""
    options = {} if block_size is None else {"block_size": block_size}
    plan = planned("shampoo" if k == 0.25 else "shampoo-1/2", **options)
    blocks = {None: 1.0, 32: 4 * 8, 128: 2 * 8, 4096: 1.0}[block_size]
    for name, growth in (("2.weight", UP), ("4.weight", DOWN)):
        expected = (growth["out"] / growth["in"]) ** (1 - 2 * k) * blocks ** (-2 * k)
        assert plan[name].lr == pytest.approx(LR * expected)
        assert plan[name].optimizer.endswith("Preconditioned")
    assert plan["0.weight"].optimizer == "adamw"


@pytest.mark.parametrize("block_size", [None, 32])
def test_soap(block_size):
    """(d_o / d_i)^1/2 (b_o b_i)^-1/2, and eps like the norm of the gradient of a block."""
    plan = planned("soap", **({} if block_size is None else {"block_size": block_size}))
    blocks = 1.0 if block_size is None else 4 * 8
    for name, growth in (("2.weight", UP), ("4.weight", DOWN)):
        ratio = growth["out"] / growth["in"]
        assert plan[name].lr == pytest.approx(LR * ratio**0.5 * blocks**-0.5)
        assert plan[name].eps == pytest.approx(1e-8 * (ratio * blocks) ** -0.5)


def test_soap_on_one_side():
    """Inputs only: d_i^-1/2; eps d_i^1/2 / d_o. Outputs only: d_o^1/2 / d_i; eps d_o^-1/2."""
    inputs = planned(soap("in"))
    assert inputs["2.weight"].lr == pytest.approx(LR * 4**-0.5)
    assert inputs["2.weight"].eps == pytest.approx(1e-8 * 4**0.5 / 8)
    outputs = planned("soap-out")
    assert outputs["2.weight"].lr == pytest.approx(LR * 8**0.5 / 4)
    assert outputs["2.weight"].eps == pytest.approx(1e-8 * 8**-0.5)


@pytest.mark.parametrize(
    ("law", "power"),
    [("soap", 0.5), ("shampoo", 0.25), ("shampoo-1/2", 0.5)],
)
def test_blocks_of_one_side(law, power):
    """A side that is not preconditioned is not cut: nb_i^-E or nb_o^-E in the code of Qiu et al."""
    for side, blocks in (
        ("in", 4),
        ("out", 8),
    ):  # of 2.weight: 64 and 256 columns, 128 and 1024 rows
        whole = planned(f"{law}-{side}")["2.weight"]
        cut = planned(f"{law}-{side}", block_size=32)["2.weight"]
        assert cut.lr == pytest.approx(whole.lr * blocks**-power)


def test_blocks_of_both_sides_if_one_is_preconditioned():
    """For Shampoo all blocks count. For SOAP, the blocks of the other side do not."""
    whole = planned("shampoo-1/2-in")["2.weight"]
    assert planned("shampoo-1/2-in", block_size=(32, 32))["2.weight"].lr == pytest.approx(
        whole.lr * (4 * 8) ** -0.5
    )
    for law in ("soap-in", soap("in")):
        one = planned(law, block_size=(None, 32))["2.weight"]
        assert planned(law, block_size=(32, 32))["2.weight"].lr == one.lr
        assert planned(law, block_size=32)["2.weight"].lr == one.lr
    with refuses("invalid-argument", argument="block_size"):
        planned("soap", block_size=(32, 32, 32))


def test_real_shampoo_on_one_side_cuts_both():
    """One step of ScalableShampoo on the inputs, in 3 x 4 blocks: (3 x 4)^1/2 times the norm."""
    package = pytest.importorskip("pytorch_optimizer")
    options: dict[str, Any] = {
        "betas": (0.0, 0.9), "start_preconditioning_step": 1, "preconditioning_compute_steps": 1,
        "graft_type": 0, "shape_interpretation": False, "nesterov": False, "use_svd": True,
        "matrix_eps": 1e-12, "inverse_exponent_override": 2, "pre_conditioner_type": 1,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(48, 1, generator=generator, dtype=torch.float64)
    right = torch.randn(1, 64, generator=generator, dtype=torch.float64)
    norms: dict[int, float] = {}
    for size in (16, 64):
        p = nn.Parameter(torch.zeros(48, 64, dtype=torch.float64))
        optimizer = package.ScalableShampoo([p], lr=1.0, block_size=size, **options)
        p.grad = left @ right
        optimizer.step()
        before = p.detach().clone()
        optimizer.step()
        norms[size] = float(torch.linalg.matrix_norm(p.detach() - before, 2))
    assert norms[16] / norms[64] == pytest.approx(12**0.5, rel=1e-3)


def test_a_side_that_is_too_long_is_left_alone():
    """At a limit of 100, the inner width is not preconditioned in base and target."""
    plan = planned("soap", max_dim=100)
    sides = planned(soap("in"))
    # 2.weight has 64 columns in the base, and 256 in the target: neither side is left there
    assert plan["2.weight"].lr == pytest.approx(LR * 2**0.5 * (256 * 1024 / 128) ** -0.5)
    plan = planned("soap", max_dim=300)
    # the inner width passes the limit in the target only: |dW| grows by 1024^1/2
    assert plan["2.weight"].lr == pytest.approx(LR * 2**0.5 * 1024**-0.5)
    plan = planned("soap", max_dim=2000)
    assert plan["2.weight"].lr == pytest.approx(LR * 2**0.5)
    assert sides["2.weight"].lr == pytest.approx(LR / 2)


def test_fixed_blocks_are_the_law_of_entries():
    """With every side in blocks of one size, SOAP has the rates of Adam."""
    blocked = planned("soap", block_size=32)
    entries = planned("soap-blocked", hidden_only=True)
    for name in ("2.weight", "4.weight"):
        assert blocked[name].lr == pytest.approx(entries[name].lr)
        assert blocked[name].eps == pytest.approx(entries[name].eps)


class Residual(nn.Module):
    def __init__(self, depth: int):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.inner = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.stem(x)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + outer(torch.relu(inner(x)))
        return self.head(x)


@pytest.mark.parametrize(
    ("law", "power"), [(shampoo(), 0), (shampoo("1/2"), -1), (shampoo("1/4", "in"), 0.5)]
)
def test_depth_enters_by_the_power_of_the_gradient(law, power):
    """m_L^(1 - 2 E) for a tensor without the multiplier 1/L of its branch."""
    register(Preconditioned, law)
    plan = o1.plan(
        Residual(8), base=Residual(2), optimizer=Preconditioned, lr=LR, depth="completep",
        inputs=torch.randn(4, 8),
    )  # fmt: skip
    assert plan["inner.0.weight"].lr == pytest.approx(LR * 4.0**power)


def test_the_law_may_have_a_name():
    register(Preconditioned, "normuon")
    assert algorithm(Preconditioned).law == "muon"
    register(Preconditioned, "ademamix")
    assert algorithm(Preconditioned).law == "adamw"
    register(Preconditioned, "dion")
    assert o1.plan(mlp(WIDE), base=mlp(NARROW), optimizer=Preconditioned)["2.weight"].lr == LR


def test_a_law_without_a_class_of_torch_asks_for_the_class():
    for name in ("soap", "shampoo-1/2-in"):
        with refuses("unknown-name", argument="optimizer") as caught:
            o1.plan(mlp(WIDE), base=mlp(NARROW), optimizer=name)
        assert f"register(Class, law={name!r})" in str(caught.value)


def test_bad_registrations():
    with refuses("unknown-name", argument="law"):
        register(Preconditioned, "soup")
    with refuses("invalid-argument", argument="block_size"):
        register(Preconditioned, "adam", block_size=32)
    with refuses("invalid-argument", argument="max_dim"):
        register(Preconditioned, "shampoo", max_dim=32)
    with refuses("invalid-argument", argument="block_size"):
        register(Preconditioned, "soap", block_size=0)
    with refuses("invalid-argument", argument="rate_factor"):
        register(Preconditioned, "soap", block_size=8, rate_factor=lambda shape: 1.0)


def test_blocks_are_part_of_the_identity_of_a_sweep():
    factors = []
    for size in (8, 8, 4):
        register(Preconditioned, "soap", block_size=size)
        factors.append(str(identity(algorithm(Preconditioned).rate_factor)))
    assert factors[0] == factors[1] != factors[2]
