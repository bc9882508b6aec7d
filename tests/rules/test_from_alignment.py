"""Rules from measured alignments: known alignments, other optimizers, and a plan with such a
rule."""

from fractions import Fraction as F

import pytest
import torch
from torch import nn

import orderone as o1
from orderone import rules
from orderone.theory.exponents import max_lr

FULL = {"omega": F(1, 2), "alpha": F(1), "u": F(1)}
HALF_ALIGNED = {
    "omega": {"hidden": "1/2", "readout": "0.9"},
    "alpha": {"hidden": "0.8", "readout": 1},
    "u": "0.8",
}
OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "muon")


class Measurement:
    """An object with the method of a result of `orderone.alignment`."""

    def as_alignment(self):
        return HALF_ALIGNED


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("like", ["sp", "ntk", "mup", "mf"])
def test_full_alignment_gives_the_rule_itself(like, optimizer):
    known = rules.get(like, optimizer)
    made = rules.from_alignment(FULL, like=like, optimizer=optimizer, name=like)
    assert made == known
    assert made.c == known.c


def test_less_alignment_allows_larger_rates_where_it_is_less():
    """S0 (19): a + c >= alpha, and a = 0 in muP's hidden layers."""
    made = rules.from_alignment(HALF_ALIGNED, like="mup", optimizer="adam")
    assert made.c["hidden"] == F(4, 5)
    assert {role: made.c[role] for role in ("embedding", "readout", "vector")} == {
        role: rules.get("mup").c[role] for role in ("embedding", "readout", "vector")
    }
    assert made.c["hidden"] != rules.get("mup").c["hidden"]


def test_a_readout_more_aligned_than_assumed_slows_down_what_feeds_it():
    """S0 (18): in SP, W dh must not grow, so that dh shrinks by as much as omega exceeds 1/2."""
    made = rules.from_alignment(HALF_ALIGNED, like="sp", optimizer="adam")
    assert made.c["embedding"] - rules.get("sp").c["embedding"] == F("0.9") - F(1, 2)


def test_objects_mappings_and_rules_are_accepted():
    from_object, from_mapping = (
        rules.from_alignment(Measurement()),
        rules.from_alignment(HALF_ALIGNED),
    )
    assert from_object == from_mapping
    assert from_object.name == "mup-measured"
    mine = rules.custom("mine", a=(0, 0, "1/2"), b=(0, "1/2", "1/2"))
    made = rules.from_alignment(Measurement(), like=mine, optimizer="sgd", name="ours")
    assert (made.name, made.a, made.b) == ("ours", mine.a, mine.b)
    assert {role: made.c[role] for role in ("embedding", "hidden", "readout")} == max_lr(
        mine, "sgd", HALF_ALIGNED
    )


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_plan_uses_the_rule(optimizer):
    """Derived for Adam, used with any optimizer: the hidden rate follows its exponent, here
    r^{-c}."""
    rule = rules.from_alignment(Measurement(), like="mup", optimizer="adam")
    model, base = mlp(64), mlp(16)
    plan = o1.plan(model, base=base, rule=rule, optimizer=optimizer, lr=0.1)
    assert plan.settings.rule == "mup-measured"
    expected = rules.from_alignment(Measurement(), like="mup", optimizer=optimizer).c["hidden"]
    assert plan["2.weight"].lr == pytest.approx(0.1 * 4 ** -float(expected))
    assert plan["2.weight"].lr != pytest.approx(
        o1.plan(model, base=base, optimizer=optimizer, lr=0.1)["2.weight"].lr
    )
    plan.apply()
    plan.check(stepped(model, plan.optimizer()))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alignment": None}, "^alignment: .*full, no, worst"),
        ({"alignment": {"beta": 1}}, "alignment exponent: .*'beta'"),
        ({"alignment": {"alpha": 2}}, "alpha: .*between 0 and 1"),
        ({"alignment": FULL, "like": "muup"}, "rule: .*'mup'[?]"),
        ({"alignment": FULL, "optimizer": "adan"}, "optimizer: .*'adam'[?]"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rules.from_alignment(**arguments)
