"""Learning rates from the solver against the full grid of reference values, and against what stability says."""

from dataclasses import replace
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderone import rules
from orderone.theory.exponents import OPTIMIZERS, InfeasibleError, max_lr, solve, stability

# Computed independently of this project: (c_embedding, c_hidden, c_readout).
REFERENCE = {
    ("sgd", "full", "sp"): "-1/2 1/2 1",
    ("sgd", "full", "ntk"): "-1/2 -1/2 0",
    ("sgd", "full", "mup"): "0 0 0",
    ("sgd", "full", "mf"): "-1 -1 -1",
    ("adam", "full", "sp"): "0 1 1",
    ("adam", "full", "ntk"): "0 1/2 1/2",
    ("adam", "full", "mup"): "1/2 1 1/2",
    ("adam", "full", "mf"): "0 1/2 0",
    ("adafactor", "full", "sp"): "0 1/2 1/2",
    ("adafactor", "full", "ntk"): "0 1/2 1/2",
    ("adafactor", "full", "mup"): "0 1/2 0",
    ("adafactor", "full", "mf"): "0 1/2 0",
    ("sgd", "no", "sp"): "-1/2 0 1/2",
    ("sgd", "no", "ntk"): "-1/2 -1 -1/2",
    ("sgd", "no", "mup"): "0 -1/2 -1/2",
    ("sgd", "no", "mf"): "-1 -3/2 -3/2",
    ("adam", "no", "sp"): "0 1/2 1/2",
    ("adam", "no", "ntk"): "0 0 0",
    ("adam", "no", "mup"): "1/2 1/2 0",
    ("adam", "no", "mf"): "0 0 -1/2",
    ("adafactor", "no", "sp"): "0 0 0",
    ("adafactor", "no", "ntk"): "0 0 0",
    ("adafactor", "no", "mup"): "0 0 -1/2",
    ("adafactor", "no", "mf"): "0 0 -1/2",
}
S0_RULES = ("sp", "ntk", "mup", "mf")
alignments = st.fixed_dictionaries(
    {
        kind: st.fixed_dictionaries(
            {role: st.fractions(min_value=F(1, 2), max_value=1, max_denominator=8) for role in ("hidden", "readout")}
        )
        for kind in ("omega", "alpha", "u")
    }
)


@pytest.mark.parametrize(("optimizer", "alignment", "name"), REFERENCE)
def test_grid_equals_the_reference(optimizer, alignment, name):
    expected = [F(c) for c in REFERENCE[optimizer, alignment, name].split()]
    got = max_lr(rules.get(name), optimizer=optimizer, alignment=alignment)
    assert got == dict(zip(("embedding", "hidden", "readout"), expected, strict=True))
    assert all(type(c) is F for c in got.values())


@pytest.mark.parametrize("name", S0_RULES)
def test_adamw_and_sign_are_adam(name):
    p = rules.get(name)
    assert max_lr(p, "adam") == max_lr(p, "adamw") == max_lr(p, "sign")


def test_muon_hidden_rate_does_not_depend_on_width_where_multipliers_do_not():
    for name, hidden in {"sp": 0, "mup": 0, "ntk": F(-1, 2), "mf": F(-1, 2)}.items():
        for alignment in ("full", "no"):  # the spectral norm bounds the alignment
            assert max_lr(rules.get(name), "muon", alignment)["hidden"] == hidden


@pytest.mark.parametrize("s", [F(0), F(1, 3), F(1, 2), F(1)])
def test_the_strategies_of_s2_come_out_of_the_worst_case(s):
    """S2 footnotes 8 and 26, errata S2.9: AdamW (1-s)/2, (3-s)/2, 1; SGD -s, 1-s, 1."""
    p = rules.custom("s", a=(0, 0, 0), b=(0, "1/2", (1 + s) / 2))
    adam, sgd = max_lr(p, "adamw", "worst"), max_lr(p, "sgd", "worst")
    assert list(adam.values()) == [(1 - s) / 2, (3 - s) / 2, 1]
    assert list(sgd.values()) == [-s, 1 - s, 1]


@settings(max_examples=40, deadline=None)
@given(alignments, st.sampled_from(S0_RULES), st.sampled_from(list(OPTIMIZERS)), st.integers(1, 4))
def test_the_rates_are_stable_and_no_rate_can_be_raised_alone(alignment, name, optimizer, depth):
    start = rules.get(name)
    solution = solve(start, optimizer, alignment, depth=depth)
    p = start.with_c(solution.c)
    assert not [j for j in stability(p, optimizer, alignment, depth=depth).failed if j.condition.code != "(8)"]
    for role in ("embedding", "hidden", "readout", "vector"):
        faster = replace(p, c={**p.c, role: p.c[role] - F(1, 100)})
        assert not stability(faster, optimizer, alignment, depth=depth), (role, solution)
        assert solution.why(role)


def test_hidden_omega_above_one_half_costs_rate_with_depth():
    """Every layer multiplies the change by n^(omega - 1/2); the first ones must start that much smaller."""
    alignment = {"omega": {"hidden": "3/4"}}
    for depth in (1, 2, 5):
        c = max_lr(rules.get("mup"), "adam", alignment, depth=depth)
        assert c["embedding"] == F(1, 2) + F(depth, 4)


def test_user_constraints_hold_and_the_others_give_way():
    free = max_lr(rules.get("mup"))
    for constraint in ("c_readout = 3/4", "readout c = 0.75", {"readout": F(3, 4)}):
        assert max_lr(rules.get("mup"), constraints=constraint) == free | {"readout": F(3, 4)}
    tied = max_lr(rules.get("sp"), constraints=["c_hidden >= c_readout + 1/2", "2*c_embedding - 1 = c_hidden"])
    assert tied == {"embedding": F(5, 4), "hidden": F(3, 2), "readout": F(1)}


def test_infeasible_is_a_result_that_names_the_conflict():
    solution = solve(rules.get("mup"), constraints=["readout c = 0"])
    assert not solution
    assert {k.code for k in solution.conflict} == {"(19)", "(given)", "(13)"}
    assert "readout c = 0" in str(solution)
    with pytest.raises(InfeasibleError, match=r"\(19\) readout"):
        max_lr(rules.get("mup"), constraints=["readout c = 0"])


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (["c_readout = 0", "c_readout = 1"], "'c_readout = 0' and 'c_readout = 1' contradict"),
        ("c_reedout = 0", "did you mean 'readout'"),
        ("c_readout", "expected one of =, <=, >="),
        ("c_readout < 1 = 2", "cannot read"),
        ("1 = 2", "expected a learning-rate exponent"),
        ("c_readout =", "one side is empty"),
        ({"readout": 0.1}, "expected an exact number"),
    ],
)
def test_bad_constraints(constraints, message):
    with pytest.raises(ValueError, match=message):
        max_lr(rules.get("mup"), constraints=constraints)


def test_tied_embedding_needs_one_variance_and_gets_one_rate():
    for name in ("mup", "mf"):  # S0 A.1.2: b_embedding = b_readout in both
        for optimizer in OPTIMIZERS:
            c = max_lr(rules.get(name), optimizer, "worst", tied=True)
            assert c["embedding"] == c["readout"]
    solution = solve(rules.get("sp"), tied=True)
    assert [k.code for k in solution.conflict] == ["(tied)"]


def test_tied_sgd_follows_the_larger_gradient():
    """With b equal but a chosen so that the readout's gradient dominates, its size limits the shared rate."""
    p = rules.custom("lopsided", a=(0, "1/2", "3/2"), b=(0, 0, 0))
    # W'_0 ~ n^-3/2, W'_{L+1} ~ n^-3/2; alone the embedding could take n^{3/2}, the readout n^{2}
    alone, tied = max_lr(p, "sgd"), max_lr(p, "sgd", tied=True)
    assert (alone["embedding"], alone["readout"]) == (F(-3, 2), F(-2))
    assert tied["embedding"] == tied["readout"] == F(-3, 2)


@pytest.mark.parametrize("name", S0_RULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_normalization_changes_nothing_for_rules_that_are_stable_without(name, optimizer):
    p = rules.get(name)
    assert max_lr(p, optimizer, norm=True) == max_lr(p, optimizer)


def test_normalization_makes_rates_follow_the_weights_alone():
    """Behind RMSNorm only dW/W counts: with variance n^{-2b} everywhere, Adam's hidden rate is n^{-(b + 1/2)}."""
    p = rules.custom("loud", a=(0, 0, "1/2"), b=(1, 0, "1/2"), c=(0, 0, 0))
    assert max_lr(p, "adam", norm=True) == {"embedding": F(1), "hidden": F(1, 2), "readout": F(1, 2)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "adamx"}, "unknown optimizer: expected one of sgd, .*did you mean 'adam"),
        ({"alignment": "fully"}, "unknown alignment: .*did you mean 'full'"),
        ({"alignment": {"beta": 1}}, "unknown alignment exponent"),
        ({"alignment": {"omega": {"head": 1}}}, "unknown role in omega"),
        ({"alignment": {"omega": {"readout": 2}}}, r"omega\[readout\]: expected an alignment exponent between 0 and 1"),
        ({"alignment": {"omega": 0.1}}, "expected an exact number"),
        ({"alignment": {"hidden": {"beta": 1}}}, "unknown alignment exponent: .*got 'beta'"),
        ({"alignment": {"hidden": 1}}, r"alignment\[hidden\]: expected a mapping"),
        ({"depth": 0}, "number of hidden layers"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        max_lr(rules.get("sp"), **arguments)
