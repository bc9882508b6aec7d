"""Gauge shifts form a group and change no verdict; three have names; SP = NTK and muP = MF."""

from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone import rules
from orderone.theory.exponents import (
    GAUGES,
    OPTIMIZERS,
    ROLES,
    canonical,
    equivalent,
    gauge,
    shift,
    stability,
)

numbers = st.fractions(min_value=-2, max_value=2, max_denominator=6)
shifts = st.dictionaries(st.sampled_from(ROLES), numbers)
each = st.tuples(numbers, numbers, numbers, numbers)  # a number for each role
anything = st.tuples(each, each, each)
optimizers = st.sampled_from(list(OPTIMIZERS))


def rule(abc):
    a, b, c = abc
    return rules.custom("any", a=a, b=b, c=c)


@settings(deadline=None)
@given(anything, shifts, shifts, optimizers)
def test_shifts_form_a_group(abc, first, second, optimizer):
    p = rule(abc)
    both = {role: first.get(role, F(0)) + second.get(role, F(0)) for role in ROLES}
    back = {role: -theta for role, theta in first.items()}
    one_after_the_other = shift(shift(p, first, optimizer), second, optimizer)
    assert one_after_the_other == shift(p, both, optimizer)
    assert shift(shift(p, first, optimizer), back, optimizer) == p
    assert shift(p, {}, optimizer) == p


@settings(deadline=None, max_examples=40)
@given(anything, shifts, optimizers, st.sampled_from(["full", "no", "worst"]))
def test_a_shift_never_changes_a_verdict(abc, theta, optimizer, alignment):
    p = rule(abc)
    before, after = (stability(q, optimizer, alignment) for q in (p, shift(p, theta, optimizer)))
    assert [j.margin for j in before.judged] == [j.margin for j in after.judged]


@settings(deadline=None)
@given(anything, shifts, optimizers)
def test_a_shift_stays_in_its_class_and_the_canonical_member_is_one(abc, theta, optimizer):
    p = rule(abc)
    q = shift(p, theta, optimizer)
    assert equivalent(p, q, optimizer)
    assert canonical(p, optimizer) == canonical(q, optimizer)
    assert set(canonical(p, optimizer).a.values()) == {0}


@pytest.mark.parametrize(
    ("optimizer", "weight"), [("sgd", 2), ("adam", 1), ("adamw", 1), ("adafactor", 0), ("muon", 1)]
)
def test_each_optimizer_has_its_own_shift(optimizer, weight):
    """Erratum S0.3: the printed c - theta is Adam's."""
    p = rules.get("mup")
    q = shift(p, {"hidden": F(1, 2)}, optimizer=optimizer)
    assert q.a["hidden"] - p.a["hidden"] == p.b["hidden"] - q.b["hidden"] == F(1, 2)
    assert p.c["hidden"] - q.c["hidden"] == F(weight, 2)
    for other in ("sgd", "adam", "adafactor"):
        assert equivalent(p, q, other) == (OPTIMIZERS[other].gauge_weight == weight)


@pytest.mark.parametrize("derived_for", ["adam", None])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_table_1_has_two_classes(optimizer, derived_for):
    """Under every optimizer; rates that were derived for another one are derived again."""
    names = ("sp", "ntk", "mup", "mf", "maximal-update")
    p = {name: rules.get(name, optimizer=derived_for or optimizer) for name in names}
    assert equivalent(p["sp"], p["ntk"], optimizer)
    assert equivalent(p["mup"], p["mf"], optimizer)
    assert equivalent(p["mup"], p["maximal-update"], optimizer)
    assert not equivalent(p["sp"], p["mup"], optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", rules.names())
def test_named_gauges(name, optimizer):
    p = rules.get(name, optimizer)
    assert set(gauge(p, "folded", optimizer).a.values()) == {0}
    assert set(gauge(p, "unit", optimizer).b.values()) == {0}
    assert gauge(p, "paper", optimizer) == p
    for first in GAUGES:
        for second in GAUGES:
            assert gauge(gauge(p, first, optimizer), second, optimizer) == gauge(
                p, second, optimizer
            )


def test_folded_mup_is_the_recipe_engineers_know():
    p = gauge(rules.get("mup"), "folded", "adam")
    assert [p.b[r] for r in ("embedding", "hidden", "readout")] == [0, F(1, 2), 1]
    assert [p.c[r] for r in ("embedding", "hidden", "readout")] == [0, 1, 1]


def test_a_tied_tensor_moves_as_one():
    """Folded, a tied muP keeps one multiplier, 1/n at the readout, and one variance and one
    rate."""
    for name, kept in {"folded": (0, 1), "unit": (0, 1), "paper": (F(-1, 2), F(1, 2))}.items():
        p = gauge(rules.get("mup"), name, "adam", tied=True)
        assert (p.a["embedding"], p.a["readout"]) == kept
        assert p.b["embedding"] == p.b["readout"]
        assert stability(p, "adam", "worst", tied=True)


def test_bad_shifts():
    with refuses("unknown-name", argument="gauge"):
        gauge(rules.get("sp"), "fold")
    with refuses("unknown-name", argument="role in theta"):
        shift(rules.get("sp"), {"head": 1})
    with refuses("inexact-number", argument="theta[hidden]"):
        shift(rules.get("sp"), {"hidden": 0.1})
    with refuses("invalid-argument", argument="theta"):
        shift(rules.get("sp"), 3)  # pyright: ignore[reportArgumentType]
    with refuses("wrong-type", argument="rule") as caught:
        equivalent("mup", "mf")  # pyright: ignore[reportArgumentType]
    assert "rules.get('mup')" in str(caught.value)
