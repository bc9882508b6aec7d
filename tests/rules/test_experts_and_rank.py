"""Experts and rank as second widths: closed forms against the linear program."""

import pytest
from support.errors import refuses

from orderone import rules
from orderone.rules.axes import ExpertGrowth, expert_factors, rank_factors, width_factors
from orderone.rules.factors import Growth
from orderone.theory.exponents import solve

LAWS = ("adam", "sgd")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ratio", [1.0, 2.0, 8.0])
def test_active_experts_are_a_second_width(law, ratio):
    """With all experts active, an expert is an embedding of the mean-field rule, and the sum over
    experts, whose weights are one each, its readout."""
    program = width_factors(rules.get("mf", law), "embedding", Growth(fan_out=ratio), law)
    ours = expert_factors("expert", ExpertGrowth(ratio, ratio), law)
    assert ours.lr == pytest.approx(program.lr)
    assert ours.gradient == pytest.approx(program.gradient)
    assert ours.std == program.std == 1
    sum_of_ones = ExpertGrowth(ratio, ratio, weights=ratio)
    readout = width_factors(rules.get("mf", law), "readout", Growth(fan_in=ratio), law)
    assert expert_factors("expert output", sum_of_ones, law).std == pytest.approx(readout.std)


def test_more_experts_of_which_as_many_are_active():
    """A gradient sums over tokens that visit the expert, M/k times fewer: M^-1/2."""
    growth = ExpertGrowth(experts=8)
    for tensor in ("router", "expert", "expert output"):
        factors = expert_factors(tensor, growth)
        assert factors.gradient == pytest.approx(8**-0.5)
        assert factors.lr == factors.std == 1
        assert expert_factors(tensor, growth, "sgd").lr == pytest.approx(8**0.5)


def test_weights_that_do_not_sum_to_one_are_compensated():
    """A softmax over all experts gives weights 1/M: the last matrix starts and learns M times
    faster, and Adafactor's relative step needs no other rate."""
    growth = ExpertGrowth(experts=8, weights=1 / 8)
    adam = expert_factors("expert output", growth)
    assert (adam.std, adam.lr) == pytest.approx((8, 8))
    assert adam.gradient == pytest.approx(8**-0.5 / 8)
    assert expert_factors("expert output", growth, "adafactor").lr == pytest.approx(1)
    assert expert_factors("expert", growth).std == 1


def test_the_published_rules_for_experts():
    """The entries of mssp-moe's tables (M, k and the width N grow together, here by 4)."""
    growth = ExpertGrowth(4, 4, fan_in=4)
    mup = expert_factors("router", growth)
    mssp = expert_factors("router", growth, rule="mssp")
    assert mssp.std / mup.std == 2  # fan-in^-1/2 instead of 1/fan-in
    assert mssp.gradient == pytest.approx(1 / 4)  # eps 1/M
    assert expert_factors("expert output", growth, rule="mssp").std == 2  # (M / fan-in)^1/2
    wider = ExpertGrowth(4, 4, width=4)
    assert expert_factors("expert output", wider, rule="mssp").std == 1
    jiang = expert_factors("expert", growth, rule="jiang")
    assert jiang.eps * jiang.gradient == pytest.approx(1)  # one eps for all sizes


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_the_rank_is_the_width_of_the_adapter(law, gamma):
    """A is an embedding and B a readout of muP; the multiplier r^-gamma is a gauge shift of B."""
    ratio = 8.0
    p = rules.get("mup", law)
    a = rank_factors("A", ratio, ratio**-gamma, law)
    assert a == width_factors(p, "embedding", Growth(fan_out=ratio), law)
    shifted = rules.custom("b", a=(0, 0, gamma), b=(0, "1/2", 1 - gamma), optimizer=law)
    c = solve(shifted, law, "full").c["readout"]
    b = rank_factors("B", ratio, ratio**-gamma, law)
    assert b.std == pytest.approx(ratio ** -(1 - gamma))
    assert b.lr == pytest.approx(ratio ** -float(c))


def test_rates_of_lora_do_not_depend_on_the_rank():
    for rule in ("mup", "mua"):
        for tensor in ("A", "B"):
            assert rank_factors(tensor, 8, 1 / 8, rule=rule).lr == pytest.approx(1)
    rslora = 8**-0.5
    assert rank_factors("B", 8, rslora).lr == pytest.approx(8**-0.5)
    assert rank_factors("A", 8, rslora).lr == 1
    assert rank_factors("A", 8, rslora, rule="mua").lr == pytest.approx(8**-0.25)
    assert rank_factors("B", 8, 1.0, rule="mua", random="B").lr == 1


def test_rules_without_a_law_are_refused():
    with refuses("rank-without-law", argument="rank_rule"):
        rank_factors("A", 8, 1.0, "sgd", rule="mua")
    with refuses("rank-without-law", argument="rank_rule"):
        rank_factors("A", 8, 0.5, rule="mua", random="B")
    with refuses("unknown-name"):
        expert_factors("expert", ExpertGrowth(), rule="nonsense")
