"""The groups of S2, against powers worked out by hand and against the exponents of the s-family."""

import math

import pytest
from support.errors import refuses

from orderone import rules, theory
from orderone.theory.exponents import canonical

STRATEGIES = {"neural-tangent": 0.0, "hybrid": 0.5, "maximal-update": 1.0, "s=1/4": 0.25}


@pytest.mark.parametrize(("strategy", "s"), STRATEGIES.items())
def test_adamw_factors_of_a_vision_transformer(strategy, s):
    """S2 Table II.1.E with the factor M = 4 kept (erratum S2.3)."""
    n, n_in, n_out = 768, 588, 1000
    lift = n ** (s / 2)
    expected = {
        "patch": lift / (n_in * math.sqrt(n)),
        "WE": lift / math.sqrt(n),
        "PE": lift / math.sqrt(n),
        "QKVU": lift / n**1.5,
        "W": lift / (n * math.sqrt(4 * n)),
        "X": lift / (4 * n * math.sqrt(n)),
        "head": 1 / (n * math.sqrt(n_out)),
        "head_bias": 1 / math.sqrt(n_out),
    }
    assert theory.lr_factors(strategy, "adamw", n=n, n_in=n_in, n_out=n_out) == pytest.approx(
        expected
    )


@pytest.mark.parametrize("mlp", [0.25, 0.5, 2])
def test_the_width_is_that_of_the_stream_even_if_the_mlp_is_narrower(mlp):
    n, found = 64, theory.lr_factors("hybrid", n=64, mlp=mlp)
    assert found["W"] == pytest.approx(n**0.25 / (n * math.sqrt(mlp * n)))
    assert found["X"] == pytest.approx(n**0.25 / (mlp * n * math.sqrt(n)))


@pytest.mark.parametrize(("strategy", "s"), STRATEGIES.items())
def test_sgd_factors(strategy, s):
    n = 1024
    expected = {
        "patch": n**s / 768,
        "WE": n**s,
        "PE": n**s,
        "QKVU": n**s / n,
        "W": n**s / n,
        "X": n**s / (4 * n),
    }
    expected |= {"head": 1 / n, "head_bias": 1.0}
    assert theory.lr_factors(strategy, "sgd", n=n) == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_solver_finds_the_same_powers_of_the_width(strategy, optimizer):
    """A second derivation: the largest stable rates under the worst alignment."""
    folded = canonical(rules.get(strategy, optimizer), optimizer)
    small, large = (theory.lr_factors(strategy, optimizer, n=n) for n in (512, 2048))
    for group, role in {
        "WE": "embedding",
        "QKVU": "hidden",
        "X": "hidden",
        "head": "readout",
    }.items():
        assert math.log(small[group] / large[group]) / math.log(4) == pytest.approx(
            float(folded.c[role])
        ), group
    stds = [theory.init_std(strategy, n=n)["head"] for n in (512, 2048)]
    assert math.log(stds[0] / stds[1]) / math.log(4) == pytest.approx(float(folded.b["readout"]))


def test_standard_is_one_rate_for_all():
    assert set(theory.lr_factors("standard").values()) == {1.0}
    assert theory.init_std("standard") == theory.init_std("neural-tangent")


def test_the_overall_rate_of_the_paper():
    """S2 II.1.E: 20 * 768^-3/2 is 9.4e-4."""
    assert 20 * theory.lr_factors("neural-tangent", n=768)["QKVU"] == pytest.approx(
        9.397e-4, rel=1e-3
    )


def test_unknown_names_are_refused():
    with refuses("unknown-name", argument="strategy"):
        theory.lr_factors("ntk")
    with refuses("unknown-name", argument="optimizer"):
        theory.lr_factors("hybrid", "muon")


@pytest.mark.parametrize("wrong", ["s=2", "s=-1/2", "s=", "s=half"])
def test_s_outside_the_family_is_refused(wrong):
    with refuses("invalid-argument", argument="strategy"):
        theory.lr_factors(wrong)
    with refuses("invalid-argument", argument="strategy"):
        rules.get(wrong)
