"""Coordinate checks along the number of experts and the rank of adapters."""

import pytest
import torch
from support.errors import refuses
from support.mixtures import MixtureNet, adapted_mlp
from torch import nn

import orderone as o1
from orderone.measure.check import Check
from orderone.measure.judge.verdict import Verdict

GENERATOR = torch.Generator().manual_seed(0)
BATCH = (
    torch.randn(256, 8, generator=GENERATOR),
    torch.randint(4, (256,), generator=GENERATOR),
)


def _check(build, **options: object) -> Check:
    keywords = {"lr": 1e-2, "batches": BATCH, "seeds": 2, "steps": 3, **options}
    return o1.coord_check(build, **keywords)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_planned_adapters_pass_along_the_rank(gamma):
    check = _check(lambda rank: adapted_mlp(rank, gamma), ranks=[4, 8, 16, 32])
    assert check.passed
    updates = check.exponents[check.exponents.quantity == "update"]
    assert set(updates.module) == {"2.left", "2.right"}
    gap = (updates.exponent - updates.predicted).abs()
    assert gap.max() < 0.1
    rates = check.exponents[check.exponents.quantity == "learning rate"].set_index("module")
    assert rates.exponent["2.right"] == pytest.approx(-(1 - gamma), abs=1e-6)


def test_one_rate_for_all_ranks_fails_with_a_constant_multiplier():
    def build(rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = adapted_mlp(rank, gamma=0.0)
        trained = [p for p in model.parameters() if p.requires_grad]
        return model, torch.optim.AdamW(trained, lr=1e-2, weight_decay=0)

    check = _check(build, ranks=[4, 8, 16, 32])
    failed = check.exponents[check.exponents.verdict == Verdict.FAIL]
    assert not check.passed
    assert "2.right" in set(failed.module)
    assert "change" in set(failed.quantity)


@pytest.mark.parametrize(
    ("form", "weights"),
    [("fused", "all"), ("fused", "top"), pytest.param("list", "all", marks=pytest.mark.slow)],
)
def test_planned_experts_pass_along_their_number(form, weights):
    def build(experts: int) -> nn.Module:
        return MixtureNet(experts, experts // 2, form=form, weights=weights)

    check = _check(build, experts=[4, 8, 16])
    assert check.passed, str(check)
    updates = check.exponents[check.exponents.quantity == "update"]
    assert any("moe" in module for module in updates.module)
    assert (updates.exponent - updates.predicted).abs().max() < 0.1
    assert "expert counts 4, 8, 16" in str(check)


@pytest.mark.parametrize(("power", "verdict"), [(0.0, "PASS"), (0.5, "FAIL"), (-1.0, "FAIL")])
def test_a_wrong_power_of_the_number_of_experts_fails(power, verdict):
    """Adam's rate of experts does not depend on their number."""

    def build(experts: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = MixtureNet(experts, experts // 2, form="fused", weights="top")
        mixture = [p for name, p in model.named_parameters() if "moe" in name]
        others = [p for name, p in model.named_parameters() if "moe" not in name]
        faulty = {"params": mixture, "lr": 1e-2 * (experts / 4) ** power}
        return model, torch.optim.AdamW([faulty, {"params": others}], lr=1e-2)

    assert _check(build, experts=[4, 8, 16]).verdict == verdict


def test_fewer_tokens_per_expert_are_allowed_for():
    """At a constant number of active experts changes may grow by the root of their number."""
    check = _check(lambda m: MixtureNet(m, 2, form="fused", weights="all"), experts=[4, 8, 16])
    assert check.passed, str(check)
    change = check.exponents[check.exponents.quantity == "change"].set_index("module")
    assert change.loc["head", "verdict"].isin([Verdict.PASS, Verdict.UNCLEAR]).all()


def test_an_axis_that_the_model_or_rule_does_not_have_is_an_error():
    with refuses("axis-not-found", argument="experts"):
        _check(lambda width: adapted_mlp(4, width=width), experts=[8, 16])
    with refuses("axis-not-found", argument="experts"):
        _check(lambda _: MixtureNet(8), experts=[8, 16])
    with refuses("axis-not-found", argument="experts"):
        _check(lambda m: MixtureNet(m), experts=[8, 16], expert_rule=None)
    with refuses("axis-not-found", argument="ranks"):
        _check(lambda m: MixtureNet(m), ranks=[8, 16])
    with refuses("several-axes", argument="widths"):
        _check(lambda m: MixtureNet(m), widths=[8, 16], experts=[8, 16])
