"""Verdicts: which condition fails, by how much, and that nothing else does."""

from fractions import Fraction as F

import pytest
from support.errors import refuses

from orderone import rules
from orderone.core.errors import code_of
from orderone.core.exact import power
from orderone.theory.exponents import Attention, max_lr, solve, stability


def codes(verdict):
    return [(j.condition.code, j.condition.role, j.margin) for j in verdict.failed]


def note_codes(verdict):
    return [code_of(note) for note in verdict.notes]


@pytest.mark.parametrize("name", ["sp", "ntk", "mup", "mf"])
def test_table_1_is_stable_under_its_assumption(name):
    verdict = stability(rules.get(name), optimizer="adam", alignment="full")
    assert verdict
    assert not verdict.failed
    assert all(
        j.margin == 0 for j in verdict.judged if j.condition.code not in ("(8)", "(18)/(24)")
    )


@pytest.mark.parametrize(
    ("name", "stable"), [("sp", False), ("ntk", False), ("mup", True), ("mf", True)]
)
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
    notes = [note for note in stability(rules.get(name)).notes if "n^(1/2)" in note]
    assert [code_of(note) for note in notes] == ([] if stable else ["readout-alignment"])


def test_text_of_verdicts_and_rules():
    verdict = stability(rules.get("sp"), alignment="worst")
    assert repr(verdict.failed) == f"[{verdict.failed[0]}]"
    assert repr(verdict) == str(verdict)
    assert "hidden     a = 0     b = 1/2   c = 1" in str(rules.get("mup"))


def test_neural_tangent_is_stable_and_noted_as_lazy():
    verdict = stability(rules.get("neural-tangent"), alignment="worst")
    assert verdict
    (note,) = (note for note in verdict.notes if code_of(note) == "lazy-training")
    assert "n^(-1/2)" in note


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"b": (F(1), F(1, 2), F(1, 2))}, ("(6)", "embedding", F(1, 2))),
        ({"b": (F(1, 2), F(0), F(1, 2))}, ("(7)", "hidden", F(-1, 2))),
        ({"b": (F(1, 2), F(1, 2), F(-1))}, ("(8)", "readout", F(-1))),
        ({"c": (F(0), F(1), F(1, 2))}, ("(14)/(21)", "embedding", F(-1, 2))),
        ({"c": (F(1, 2), F(3, 4), F(1, 2))}, ("(19)/(22)", "hidden", F(-1, 4))),
        ({"c": (F(1, 2), F(1), F(0))}, ("(19)/(22)", "readout", F(-1, 2))),
    ],
)
def test_every_condition_can_fail(change, expected):
    mup = rules.get("mup")
    p = rules.custom("broken", a=mup.a, b=change.get("b", mup.b), c=change.get("c", mup.c))
    verdict = stability(p)
    assert not verdict
    assert expected in codes(verdict)
    if "c" in change:  # one rate is too large: only its tensor fails
        assert {role for _, role, _ in codes(verdict)} == {expected[1]}
        assert codes(verdict)[0] == expected
    assert "UNSTABLE" in str(verdict)
    way = "shrinks" if expected[2] > 0 else "grows"
    assert f"{way} like {power(-expected[2])}" in str(verdict)


def test_hidden_omega_above_one_half_fails_in_the_deepest_layer():
    verdict = stability(rules.get("mup"), alignment={"omega": {"hidden": 1}}, depth=3)
    assert codes(verdict) == [("(18)/(23)", "hidden", F(-1, 2))]  # each layer by this much ...
    (note,) = (note for note in verdict.notes if code_of(note) == "growing-logits")
    assert "n^(3/2)" in note  # ... and three of them together
    assert "growing-logits" not in note_codes(stability(rules.get("mup"), depth=3))


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
    assert "they differ by n^(1/2)" in str(stability(rules.get("sp"), tied=True))


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
    loud = rules.custom("loud", a=(0, 0, 0), b=(0, 0, "1/2"), c=(0, "1/2", 1))
    assert Attention(power=1).rms(loud, depth=1)["s"] == F(1, 2)
    quiet = Attention(power=1, qk_norm=True).rms(loud, depth=1)
    assert (quiet["q"], quiet["s"], quiet["Δq"], quiet["Δs"]) == (0, F(-1, 2), 0, 0)


def test_queries_whose_changes_vanish_may_use_the_square_root():
    """In the neural-tangent regime Δq ~ n^(-1/2), so changes of scores over sqrt(d_H) do not grow;
    with muP's rates they do."""
    growing = Attention(power="1/2", growth=1)
    assert stability(rules.get("neural-tangent"), alignment="worst", attention=growing)
    assert growing.rms(rules.get("neural-tangent"), "worst")["Δs"] == 0
    assert growing.rms(rules.get("mup"), "worst")["Δs"] == F(1, 2)
    slow = solve(rules.get("mup"), "adam", "worst", attention=growing).c
    assert slow == {"embedding": F(1), "hidden": F(3, 2), "readout": F(1, 2), "vector": F(1, 2)}
    assert stability(rules.get("mup").with_c(slow), alignment="worst", attention=growing)
    assert max_lr(rules.get("mup"), attention=Attention(power=1)) == max_lr(rules.get("mup"))
    with refuses("wrong-type", argument="attention"):
        stability(rules.get("mup"), attention=True)  # pyright: ignore[reportArgumentType]


def test_rates_of_another_optimizer_are_pointed_out():
    code = "rates-for-another-optimizer"
    verdict = stability(rules.get("mup"), "sgd")
    assert code in note_codes(verdict)
    assert "derived for adam" in str(verdict)
    assert code not in note_codes(stability(rules.get("mup"), "adamw"))
    assert code not in note_codes(stability(rules.get("mup", "sgd"), "sgd"))


def test_a_note_adds_up_the_growth_at_initialization():
    p = rules.custom("loud", a=(0, 0, 0), b=(0, 0, 1), c=(0, 1, 1))
    notes = [note for note in stability(p, depth=3).notes if code_of(note) == "growing-logits"]
    assert "of size n at initialization" in notes[0]


def test_attention_rejects_heads_wider_than_the_network():
    with refuses("invalid-argument", argument="growth"):
        Attention(growth=2)
