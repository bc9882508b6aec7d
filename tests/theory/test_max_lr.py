"""Learning rates from the solver against a grid of reference values and against `stability`."""

import pickle
from dataclasses import replace
from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone import rules
from orderone.theory.exponents import (
    OPTIMIZERS,
    Attention,
    InfeasibleError,
    gradient_exponents,
    max_lr,
    rms,
    solve,
    stability,
)
from orderone.theory.exponents.solver import Network, changes, update_conditions
from orderone.theory.exponents.updates import read_alignment
from orderone.theory.linear_program import Optimum, minimize

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
            {
                role: st.fractions(min_value=F(1, 2), max_value=1, max_denominator=8)
                for role in ("hidden", "readout")
            }
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
    assert stability(p, optimizer, alignment, depth=depth)
    for role in p.roles:
        faster = replace(p, c={**p.c, role: p.c[role] - F(1, 100)})
        assert not stability(faster, optimizer, alignment, depth=depth), (role, solution)
        assert solution.why(role)


@settings(max_examples=30, deadline=None)
@given(
    alignments,
    st.tuples(*[st.fractions(-1, 1, max_denominator=4)] * 6),
    st.sampled_from(["sgd", "adam"]),
    st.integers(2, 6),
)
def test_merged_hidden_layers_have_the_same_optimum(alignment, numbers, optimizer, depth):
    """The program with one block for all later hidden layers has the optimum of the one with every
    layer."""
    p = rules.custom("any", a=numbers[:3], b=numbers[3:], c=(0, 0, 0))
    net = Network(
        p,
        OPTIMIZERS[optimizer],
        read_alignment(alignment),
        depth,
        attention=Attention(growth="1/2"),
    )
    cost = {f"c_{role}": F(1) for role in p.roles}
    full, short = (
        minimize(cost, list(update_conditions(net, together))) for together in (False, True)
    )
    assert isinstance(full, Optimum)
    assert isinstance(short, Optimum)
    assert full.value == short.value
    rates = {role: short.x[f"c_{role}"] for role in p.roles}
    r, few = (changes(list(update_conditions(net, together)), rates) for together in (False, True))
    assert {name: r[name] for name in few} == few


def test_hidden_omega_above_one_half_costs_rate_with_depth():
    """Every layer multiplies the change by n^(omega - 1/2); the first ones must start that much
    smaller."""
    alignment = {"omega": {"hidden": "3/4"}}
    for depth in (1, 2, 5):
        c = max_lr(rules.get("mup"), "adam", alignment, depth=depth)
        assert c["embedding"] == F(1, 2) + F(depth, 4)


def test_user_constraints_hold_and_the_others_give_way():
    free = max_lr(rules.get("mup"))
    for constraint in (
        "c_readout = 3/4",
        "readout c = 0.75",
        {"readout": F(3, 4)},
        [{"c_readout": "3/4"}],
    ):
        assert max_lr(rules.get("mup"), constraints=constraint) == free | {"readout": F(3, 4)}
    tied = max_lr(
        rules.get("sp"), constraints=["c_hidden >= c_readout + 1/2", "2*c_embedding - 1 = c_hidden"]
    )
    assert tied == {"embedding": F(5, 4), "hidden": F(3, 2), "readout": F(1)}


def test_infeasible_is_a_result_that_names_the_conflict():
    solution = solve(rules.get("mup"), constraints=["readout c = 0"])
    assert not solution
    assert {k.code for k in solution.conflict} == {"(19)/(22)", "(yours)", "(13)"}
    assert "readout c = 0" in str(solution)
    with refuses("infeasible-rates") as caught:
        max_lr(rules.get("mup"), constraints=["readout c = 0"])
    assert "(19)/(22) readout" in str(caught.value)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, InfeasibleError)
    assert str(copy) == str(caught.value)
    assert [str(k) for k in copy.conflict] == [str(k) for k in solution.conflict]


@pytest.mark.parametrize(
    ("constraints", "code", "argument", "words"),
    [
        (["c_readout = 0", "c_readout = 1"], "invalid-argument", "constraints", "1' contradict"),
        ("c_reedout = 0", "unknown-name", "role in the constraint", "mean 'readout'"),
        ("c_readout", "invalid-argument", "constraint", "exactly"),
        ("c_readout < 1", "invalid-argument", "constraint", "exactly"),
        ("0 <= c_readout <= 1", "invalid-argument", "constraint", "exactly"),
        ("c_readout ! = 2", "invalid-argument", "constraint", "cannot read"),
        (None, "invalid-argument", "constraints", "strings"),
        ([3], "invalid-argument", "constraint", "got 3"),
        ("1 = 2", "invalid-argument", "constraint", "exponent"),
        ("c_readout =", "invalid-argument", "constraint", "empty"),
        ({"readout": 0.1}, "inexact-number", "constraints[readout]", ""),
    ],
)
def test_bad_constraints(constraints, code, argument, words):
    with refuses(code, argument=argument) as caught:
        max_lr(rules.get("mup"), constraints=constraints)
    assert words in str(caught.value)


def test_tied_embedding_needs_one_variance_and_gets_one_rate():
    for name in ("mup", "mf"):  # S0 A.1.2: b_embedding = b_readout in both
        for optimizer in OPTIMIZERS:
            c = max_lr(rules.get(name), optimizer, "worst", tied=True)
            assert c["embedding"] == c["readout"]
    solution = solve(rules.get("sp"), tied=True)
    assert [k.code for k in solution.conflict] == ["(tied)"]


@given(st.tuples(*[st.fractions(-2, 2, max_denominator=6)] * 5), st.integers(1, 4))
def test_the_two_gradients_of_a_tied_tensor_are_of_one_size(numbers, depth):
    """(5) at l = 0 and l = L+1 depends on the layer through b alone, and a tied tensor has one
    b."""
    a0, ah, ar, b, bh = numbers
    g = gradient_exponents(rules.custom("any", a=(a0, ah, ar), b=(b, bh, b), c=(0, 0, 0)), depth)
    assert g["embedding"] == g["readout"]


def test_a_tied_rate_is_the_slower_of_the_two():
    p = rules.custom("lopsided", a=(0, "1/2", "3/2"), b=(0, 0, 0))
    alone, tied = max_lr(p, "sgd"), max_lr(p, "sgd", tied=True)
    assert (alone["embedding"], alone["readout"]) == (F(-3, 2), F(-2))
    assert tied["embedding"] == tied["readout"] == F(-3, 2)


def test_vectors_do_not_change_the_rates_of_matrices():
    """If u > alpha, a larger embedding rate costs hidden rate; the embedding comes first, with or
    without biases."""
    for roles in (3, 4):
        p = rules.custom(
            "mup",
            a=("-1/2", 0, "1/2", 0)[:roles],
            b=("1/2", "1/2", "1/2", 0)[:roles],
            c=(0, 0, 0, 0)[:roles],
        )
        assert list(max_lr(p, alignment={"alpha": "1/2", "u": 1}, depth=1).values()) == [
            F(1, 2),
            1,
            F(1, 2),
        ]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.fractions(-1, 1, max_denominator=4)] * 6),
    st.sampled_from(list(OPTIMIZERS)),
    st.booleans(),
)
def test_solved_rates_are_stable_for_any_initialization(numbers, optimizer, norm):
    """Activations may have any size at initialization: with the solver's rates no change grows, and
    r is what rms says."""
    start = rules.custom("any", a=numbers[:3], b=numbers[3:], c=(0, 0, 0))
    solution = solve(start, optimizer, "worst", depth=2, norm=norm)
    sizes = rms(
        start.with_c(solution.c), 2, norm, training=True, optimizer=optimizer, alignment="worst"
    )
    assert {f"r_{i}": -sizes[f"Δh{i}"] for i in range(1, 5)} == solution.r
    assert all(r >= 0 for r in solution.r.values())
    stable = stability(start.with_c(solution.c), optimizer, "worst", depth=2, norm=norm)
    assert {str(k) for k in solution.broken} == {str(j.condition) for j in stable.failed}


@pytest.mark.parametrize("name", S0_RULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_normalization_changes_nothing_for_rules_that_are_stable_without(name, optimizer):
    p = rules.get(name)
    assert max_lr(p, optimizer, norm=True) == max_lr(p, optimizer)


def test_normalization_makes_rates_follow_the_weights_alone():
    """After RMSNorm only dW/W counts: with variance n^{-2b} everywhere, Adam's hidden rate is
    n^{-(b + 1/2)}."""
    p = rules.custom("loud", a=(0, 0, "1/2"), b=(1, 0, "1/2"), c=(0, 0, 0))
    assert max_lr(p, "adam", norm=True) == {
        "embedding": F(1),
        "hidden": F(1, 2),
        "readout": F(1, 2),
    }


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "words"),
    [
        ({"optimizer": "adamx"}, "unknown-name", "optimizer", "mean 'adam"),
        ({"optimizer": None}, "unknown-name", "optimizer", "unknown optimizer"),
        ({"alignment": 3}, "invalid-argument", "alignment", ""),
        ({"alignment": {"omega": None}}, "invalid-argument", "omega", ""),
        (
            {"alignment": {"omega": {"vector": 7}}},
            "invalid-argument",
            "omega[vector]",
            "between 0",
        ),
        ({"depth": 2.5}, "invalid-argument", "depth", "a whole"),
        ({"alignment": "fully"}, "unknown-name", "alignment", "mean 'full'"),
        ({"alignment": {"beta": 1}}, "unknown-name", "alignment exponent", "unknown alignment"),
        ({"alignment": {"omega": {"head": 1}}}, "unknown-name", "role in omega", ""),
        (
            {"alignment": {"omega": {"readout": 2}}},
            "invalid-argument",
            "omega[readout]",
            "between 0",
        ),
        ({"alignment": {"omega": 0.1}}, "inexact-number", "omega", ""),
        ({"alignment": {"hidden": {"beta": 1}}}, "unknown-name", "alignment exponent", "'beta'"),
        ({"alignment": {"hidden": 1}}, "invalid-argument", None, "alignment[hidden]"),
        ({"depth": 0}, "invalid-argument", "depth", "number, 1"),
    ],
)
def test_bad_arguments(arguments, code, argument, words):
    with refuses(code, argument=argument) as caught:
        max_lr(rules.get("sp"), **arguments)
    assert words in str(caught.value)


def test_constraints_in_an_array_are_refused_clearly():
    with refuses("invalid-argument", argument="constraint"):
        max_lr(rules.get("sp"), constraints=np.zeros((2, 3)))
