"""Verdicts: which condition fails, by how much, and that nothing else does."""

from fractions import Fraction as F

import pytest

from orderone import rules
from orderone.theory.exponents import Attention, stability


def codes(verdict):
    return [(j.condition.code, j.condition.role, j.margin) for j in verdict.failed]


@pytest.mark.parametrize("name", ["sp", "ntk", "mup", "mf"])
def test_table_1_is_stable_under_its_assumption(name):
    verdict = stability(rules.get(name), optimizer="adam", alignment="full")
    assert verdict
    assert not verdict.failed
    assert all(j.margin == 0 for j in verdict.judged if j.condition.code not in ("(8)", "(18)/(24)"))


@pytest.mark.parametrize(("name", "stable"), [("sp", False), ("ntk", False), ("mup", True), ("mf", True)])
def test_the_readout_decides_when_it_is_aligned(name, stable):
    """Erratum S0.5: (24) holds for SP and NTK only if omega_readout <= 1/2."""
    forms = (
        "worst",
        {"omega": {"readout": 1}},
        {"omega": {"hidden": "1/2", "readout": 1}, "alpha": 1, "u": 1},
        {"readout": {"omega": 1, "alpha": 1}, "hidden": {"u": 1.0}},
    )
    for alignment in forms:
        verdict = stability(rules.get(name), alignment=alignment)
        assert bool(verdict) == stable
        assert codes(verdict) == ([] if stable else [("(18)/(24)", "readout", F(-1, 2))])
    assert "(18)/(24) readout" in str(stability(rules.get(name)))
    assert any("n^(1/2)" in note for note in stability(rules.get(name)).notes) != stable


def test_neural_tangent_is_stable_and_says_that_it_is_lazy():
    verdict = stability(rules.get("neural-tangent"), alignment="worst")
    assert verdict
    assert "lazy" in str(verdict)
    assert "n^(-1/2)" in str(verdict)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"b": (F(1), F(1, 2), F(1, 2))}, ("(6)", "embedding", F(1, 2))),
        ({"b": (F(1, 2), F(0), F(1, 2))}, ("(7)", "hidden", F(-1, 2))),
        ({"b": (F(1, 2), F(1, 2), F(-1))}, ("(8)", "readout", F(-1))),
        ({"c": (F(0), F(1), F(1, 2))}, ("(14)", "embedding", F(-1, 2))),
        ({"c": (F(1, 2), F(3, 4), F(1, 2))}, ("(19)", "hidden", F(-1, 4))),
        ({"c": (F(1, 2), F(1), F(0))}, ("(19)", "readout", F(-1, 2))),
    ],
)
def test_every_condition_can_fail(change, expected):
    mup = rules.get("mup")
    p = rules.custom("broken", a=mup.a, b=change.get("b", mup.b), c=change.get("c", mup.c))
    verdict = stability(p)
    assert not verdict
    assert expected in codes(verdict)
    assert "UNSTABLE" in str(verdict)
    way = "shrinks" if expected[2] > 0 else "grows"
    assert f"{way} like n^" in str(verdict)


def test_hidden_omega_above_one_half_fails_in_the_deepest_layer():
    verdict = stability(rules.get("mup"), alignment={"omega": {"hidden": 1}}, depth=3)
    assert ("(18)/(23)", "hidden", F(-3, 2)) in codes(verdict)


def test_normalization_forgives_initialization_only():
    p = rules.custom("loud", a=(0, 0, "1/2"), b=(0, 0, "1/2"), c=(0, "1/2", "1/2"))
    assert "(7)" in {code for code, *_ in codes(stability(p))}
    assert stability(p, norm=True, alignment="worst")
    assert not stability(p.with_c({"hidden": 0}), norm=True)


def test_tied_weights_need_one_variance_and_one_rate():
    assert stability(rules.get("mup"), alignment="worst", tied=True)
    failed = codes(stability(rules.get("sp"), tied=True))
    assert ("(tied)", "embedding", F(-1, 2)) in failed
    assert ("(tied)", "embedding", F(-1)) in failed


@pytest.mark.parametrize(
    ("power", "growth", "alignment", "stable"),
    [
        ("1/2", 1, "full", False),
        ("1/2", 1, "no", True),
        (1, 1, "full", True),
        ("1/2", 0, "full", True),
        (0, 0, "full", True),
        (0, 1, "no", False),
        ("3/4", "1/2", "full", False),
    ],
)
def test_attention_scores(power, growth, alignment, stable):
    for qk_norm in (False, True):
        attention = Attention(power=power, growth=growth, qk_norm=qk_norm)
        verdict = stability(rules.get("mup"), alignment=alignment, attention=attention)
        assert bool(verdict) == stable
        assert (attention.power >= attention.smallest_power(alignment)) == stable


def test_qk_norm_takes_the_size_of_query_and_key_out_of_the_scores():
    loud = rules.custom("loud", a=(0, 0, 0), b=(0, 0, "1/2"), c=(0, 1, 1))
    assert Attention(power=1).rms(loud) == {"q": F(1, 2), "k": F(1, 2), "s": F(1, 2), "Δs": F(1)}
    assert Attention(power=1, qk_norm=True).rms(loud) == {"q": 0, "k": 0, "s": F(-1, 2), "Δs": 0}


def test_attention_rejects_heads_wider_than_the_network():
    with pytest.raises(ValueError, match="expected 0 to 1, got 2"):
        Attention(growth=2)
