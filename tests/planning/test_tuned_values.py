"""Values that were tuned for a role at the base are constants on every axis, and shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support.mixtures import INPUTS, MixtureNet, adapted_mlp
from torch import Tensor, nn

import orderone as o1
from orderone.planning.plan import Plan

BATCH = torch.randn(32, INPUTS, generator=torch.Generator().manual_seed(0))
TUNED = {"embedding": 2.0, "hidden": 3.0, "readout": 5.0, "vector": 7.0}


class Residual(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@dataclass(frozen=True)
class Case:
    """A base, a model that differs from it on one axis, and keys of trained tensors."""

    base: nn.Module
    model: nn.Module
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = tuple(TUNED)
    drawn: tuple[str, ...] = tuple(TUNED)  # keys of tensors that do not start at zero


def case(axis: str) -> Case:
    base = Residual(16, 2)
    match axis:
        case "width":
            return Case(base, Residual(64, 2))
        case "depth":
            return Case(base, Residual(16, 8), {"depth": "completep"})
        case "batch":
            return Case(base, Residual(16, 2), {"batch": (64, 512)})
        case "tokens":
            return Case(base, Residual(16, 2), {"tokens": (2e8, 5e9)})
        case "experts":
            few = MixtureNet(8, form="fused", weights="all")
            return Case(few, MixtureNet(32, form="fused", weights="all"))
        case _:
            few = adapted_mlp(4, gamma=0.5)  # which role its tensors have depends on the rank
            more = adapted_mlp(32, gamma=0.5)
            return Case(few, more, {}, ("2.left", "2.right"), ("2.left",))


def plans(model: nn.Module, made: Case, **options: Any) -> tuple[Plan, Plan]:
    """Return a plan with values for every key, and one without."""
    tuned = dict(zip(made.keys, TUNED.values(), strict=False))
    lr = {"default": 1e-3} | {key: 1e-3 * value for key, value in tuned.items()}
    decay = {"default": 0.1} | {key: 0.2 * value for key, value in tuned.items()}
    init = {"default": 1.0} | {key: 0.5 * tuned[key] for key in made.drawn}
    shared = {"base": made.base, "inputs": BATCH, **options}
    with_values = o1.plan(model, lr=lr, weight_decay=decay, init_scale=init, **shared)
    return with_values, o1.plan(model, lr=1e-3, weight_decay=0.1, **shared)


def multipliers(model: nn.Module, made: Case, **options: Any) -> dict[str, tuple[float, ...]]:
    tuned, plain = plans(model, made, **options)
    found: dict[str, tuple[float, ...]] = {}
    for row in plain.rows:
        if not row.trained:
            continue
        mine = tuned[row.name]
        assert row.lr
        assert row.weight_decay
        init = mine.init_std / row.init_std if row.init_std and mine.init_std else 1.0
        found[row.name] = (mine.lr / row.lr, mine.weight_decay / row.weight_decay, init)
    return found


@pytest.mark.parametrize("axis", ["width", "depth", "batch", "tokens", "experts", "rank"])
def test_tuned_values_multiply_every_axis_by_a_constant(axis):
    made = case(axis)
    at_base = multipliers(made.base, made)
    at_target = multipliers(made.model, made, **made.options)
    for name, found in at_target.items():
        expected = at_base.get(name, found)  # further layers of a deeper model are not in the base
        assert found == pytest.approx(expected), name
        assert found[0] in [pytest.approx(value) for value in TUNED.values()], name
        assert found[1] == pytest.approx(2 * found[0])
        assert found[2] in (pytest.approx(0.5 * found[0]), 1.0), name
    assert len(set(at_target.values())) >= len(made.keys)


@pytest.mark.parametrize("axis", ["width", "depth", "batch", "tokens", "experts", "rank"])
def test_the_plan_shows_tuned_values_beside_the_factors_of_the_axis(axis):
    made = case(axis)
    tuned, plain = plans(made.model, made, **made.options)
    lines = tuned.table(origins=True, wide=True).splitlines()
    for key, value in zip(made.keys, TUNED.values(), strict=False):
        line = next(line for line in lines if f"tuned for '{key}'" in line)
        assert f"x{value:g}" in line
        assert f"x{2 * value:g}" in line
    assert any(line.startswith(axis) for line in lines)
    assert "tuned for" not in plain.table(origins=True, wide=True)


@pytest.mark.parametrize("experts", [8, 32])
def test_an_axis_that_counts_experts_is_no_width_and_no_row_of_a_table(experts):
    """Matrices of experts are hidden, their biases vectors, at every number of experts."""
    base = MixtureNet(8, form="fused", weights="all")
    model = MixtureNet(experts, form="fused", weights="all")
    lr = {"default": 1e-3} | {key: 1e-3 * value for key, value in TUNED.items()}
    tuned = o1.plan(model, base=base, lr=lr, inputs=BATCH)
    plain = o1.plan(model, base=base, lr=1e-3, inputs=BATCH)
    keys = {"router.weight": "readout", "moe.w1": "hidden", "moe.b1": "vector", "moe.w2": "hidden"}
    for name, key in keys.items():
        place = f"layers.0.mix.{name}"
        assert tuned[place].lr / plain[place].lr == pytest.approx(TUNED[key]), name
