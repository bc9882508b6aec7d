"""Factors of single tensors: against the tables of the papers, and against the exponents they come
from."""

import pytest
from support.errors import refuses

from orderone import rules
from orderone.rules.axes import (
    Factors,
    Growth,
    decay_factor,
    depth_factors,
    paper_multiplier,
    tied_multiplier,
    width_factors,
)
from orderone.theory.exponents import canonical, gradient_exponents
from orderone.theory.exponents.updates import update_law

OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "sign")


def grown(role: str, ratio: float) -> Growth:
    return Growth(
        fan_in=ratio if role in ("hidden", "readout") else 1.0,
        fan_out=1.0 if role == "readout" else ratio,
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", rules.names())
@pytest.mark.parametrize("role", ["embedding", "hidden", "readout", "vector"])
def test_where_all_dimensions_grow_alike_the_factors_are_powers_of_the_width(name, role, optimizer):
    p, ratio = rules.get(name, optimizer), 8.0
    folded = canonical(p, optimizer)
    f = width_factors(p, role, grown(role, ratio), optimizer)
    assert f.std == pytest.approx(ratio ** -float(folded.b[role]))
    assert f.lr == pytest.approx(ratio ** -float(folded.c[role]))
    assert f.gradient == pytest.approx(ratio ** -float(gradient_exponents(folded)[role]))
    assert f.multiplier == 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", rules.names())
def test_at_base_size_every_factor_is_exactly_one(name, optimizer):
    for role in ("embedding", "hidden", "readout", "vector"):
        assert width_factors(rules.get(name, optimizer), role, Growth(), optimizer) == Factors()
    for depth in ("sqrt", "completep"):
        assert depth_factors(depth, 1.0, optimizer, last=True) == Factors()


def test_a_matrix_that_grows_unevenly_follows_the_spectral_condition():
    """Yang, Simon & Bernstein: SGD's rate goes like fan-out / fan-in, Adam's like 1 / fan-in."""
    growth = Growth(fan_in=16, fan_out=4)
    assert width_factors(rules.get("mup", "sgd"), "hidden", growth, "sgd").lr == pytest.approx(
        4 / 16
    )
    assert width_factors(rules.get("mup", "adamw"), "hidden", growth, "adamw").lr == pytest.approx(
        1 / 16
    )
    assert width_factors(rules.get("mup", "adamw"), "hidden", growth, "adamw").std == pytest.approx(
        1 / 4
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_multiplier_can_be_moved_in_and_out(optimizer):
    law = update_law(optimizer)
    start = Factors(std=0.5, lr=0.25, gradient=2.0)
    there = start.with_multiplier(0.1, law)
    assert there.multiplier * there.std == pytest.approx(start.multiplier * start.std)
    back = there.with_multiplier(10.0, law)
    assert (back.std, back.lr, back.gradient) == pytest.approx(
        (start.std, start.lr, start.gradient)
    )
    assert start.folding(0.1, law).std == pytest.approx(0.05)


def test_folding_changes_learning_rates_by_the_gauge_weight_of_the_optimizer():
    assert Factors().folding(0.1, update_law("sgd")).lr == pytest.approx(0.01)
    assert Factors().folding(0.1, update_law("adam")).lr == pytest.approx(0.1)
    assert Factors().folding(0.1, update_law("adafactor")).lr == 1


@pytest.mark.parametrize(
    ("name", "power"),
    [("mup", 1), ("mf", 1), ("sp", 0.5), ("neural-tangent", 0.5), ("hybrid", 0.75)],
)
def test_a_tied_readout_keeps_the_rescaling_of_the_papers(name, power):
    """S2 (1.34): N_rescale = n^-(1+s)/2; muP: 1/n."""
    assert tied_multiplier(rules.get(name), 16.0) == pytest.approx(16**-power)


def test_the_paper_gauge_has_the_papers_multipliers():
    mup = rules.get("mup")
    assert paper_multiplier(mup, "embedding", grown("embedding", 4)) == pytest.approx(2)
    assert paper_multiplier(mup, "hidden", grown("hidden", 4)) == 1
    assert paper_multiplier(mup, "readout", grown("readout", 4)) == pytest.approx(0.5)


# Dey et al. 2025, Table 1, for m_L = 8: residual multiplier, and for tensors in the branch AdamW's
# rate and eps
@pytest.mark.parametrize(
    ("depth", "rate", "eps"), [("completep", 1.0, 1 / 8), ("sqrt", 8**-0.5, 8**-0.5)]
)
def test_depth_follows_the_tables_of_completep_and_depth_mup(depth, rate, eps):
    inside = depth_factors(depth, 8.0, "adamw")
    assert (inside.std, inside.lr, inside.gradient) == pytest.approx((1, rate, eps))
    last = depth_factors(depth, 8.0, "adamw", last=True)  # the multiplier eps, folded in
    assert (last.std, last.lr, last.gradient) == pytest.approx((eps, rate * eps, 1))


def test_sgd_in_depth_mup_does_not_depend_on_the_depth():
    assert depth_factors("sqrt", 8.0, "sgd").lr == pytest.approx(1)
    assert depth_factors("completep", 8.0, "sgd").lr == pytest.approx(8)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adafactor"])
def test_independent_decay_preserves_the_product_with_the_learning_rate(optimizer):
    f = width_factors(rules.get("mup", optimizer), "hidden", Growth(4, 4), optimizer)
    assert f.lr * decay_factor(f, optimizer) == pytest.approx(1)
    assert decay_factor(f, optimizer, "proportional") == 1


def test_the_ratio_of_adams_penalty_to_the_gradient_is_preserved():
    f = width_factors(rules.get("mup", "adam"), "hidden", Growth(4, 4), "adam")
    assert decay_factor(f, "adam") * f.std / f.gradient == pytest.approx(1)


def test_unknown_names_are_refused():
    with refuses("unknown-name", argument="role"):
        width_factors(rules.get("mup"), "head", Growth())
    with refuses("unknown-name", argument="depth"):
        depth_factors("linear", 2.0)
    with refuses("unknown-name", argument="decay"):
        decay_factor(Factors(), "adamw", "none")
