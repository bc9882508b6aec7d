"""Predicted sizes: the recursion against the paper's closed forms (corrected), its Table 2, Lemma
D.3, and Table 3."""

from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refuses

from orderone import rules
from orderone.theory.exponents import OPTIMIZERS, max_lr, rms

exponents = st.fractions(min_value=-2, max_value=2, max_denominator=8)
triples = st.tuples(exponents, exponents, exponents)


def closed_form(a, b, L):
    """Variances: S0 (3), (4), and (5) with the sign of the indicator corrected (erratum S0.1)."""
    a, b = ([x[0], *[x[1]] * L, x[2]] for x in (a, b))
    total = [x + y for x, y in zip(a, b, strict=True)]
    h = {f"h{i + 1}": i - 2 * sum(total[: i + 1]) for i in range(L + 2)}
    dh = {f"h'{i}": (L + 1) - i - 2 * sum(total[i:]) for i in range(1, L + 2)}
    dW = {f"W'{i}": L - (1 <= i <= L) - 2 * (sum(total) - b[i]) for i in range(L + 2)}
    return {name: F(value) / 2 for name, value in (h | dh | dW | {f"h'{L + 2}": 0}).items()}


@given(triples, triples, st.integers(1, 5))
def test_recursion_equals_the_corrected_closed_forms(a, b, depth):
    p = rules.custom("any", a=a, b=b, c=(0, 0, 0))
    assert rms(p, depth) == closed_form(a, b, depth)


def test_reference_values():
    """Variance exponents computed independently, a = (.1, .2, .3), b = (.2, .45, .4), three hidden
    layers."""
    p = rules.custom("reference", a=("0.1", "0.2", "0.3"), b=("0.2", "0.45", "0.4"), c=(0, 0, 0))
    reference = {
        "h2": -0.9,
        "h3": -1.2,
        "h4": -1.5,
        "h'3": -1.7,
        "W'0": -2.5,
        "W'1": -3.0,
        "W'2": -3.0,
        "W'4": -2.1,
    }
    sizes = rms(p, depth=3)
    assert {name: float(2 * sizes[name]) for name in reference} == pytest.approx(
        reference, abs=1e-12
    )


@given(triples, triples, st.integers(1, 4))
def test_normalized_sizes_equal_lemma_d3(a, b, depth):
    p = rules.custom("any", a=a, b=b, c=(0, 0, 0))
    sizes, gradient = rms(p, depth, norm=True), -(a[2] + b[2])
    for i in range(1, depth + 2):
        assert sizes[f"h{i}"] == 0
        assert sizes[f"h'{i}"] == gradient  # Theta(sigma_{L+1})
    for i in range(1, depth + 1):
        assert sizes[f"W'{i}"] == gradient + b[1] - F(1, 2)  # sigma_{L+1} / (sigma_l sqrt(d))
    assert sizes["W'0"] == gradient + b[0]  # sigma_{L+1} / sigma_0
    assert sizes[f"W'{depth + 1}"] == -a[2]
    assert sizes[f"h{depth + 2}"] == F(1, 2) + gradient


@pytest.mark.parametrize(
    ("name", "alignment", "logits", "h", "last", "hidden", "first"),
    [
        ("sp", "full", "0", "-1/2", "0", "-1/2", "-1/2"),  # Table 3, row by row
        ("sp", "worst", "1/2", "-1/2", "0", "-1/2", "-1/2"),
        ("mup", "worst", "0", "-1", "-1/2", "-1", "-1/2"),
    ],
)
def test_training_sizes_equal_table_3(name, alignment, logits, h, last, hidden, first):
    sizes = rms(rules.get(name), depth=3, training=True, optimizer="adam", alignment=alignment)
    assert sizes["Δh5"] == F(logits)
    assert {sizes[f"h'{i}"] for i in range(1, 5)} == {F(h)}
    assert {sizes[f"W'{i}"] for i in range(1, 4)} == {F(hidden)}
    assert (sizes["W'4"], sizes["W'0"], sizes["h'5"]) == (F(last), F(first), 0)
    assert {sizes[f"h{i}"] for i in range(1, 5)} == {F(0)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["sp", "ntk", "mup", "mf"])
def test_at_the_largest_stable_rates_everything_changes_by_order_one(name, optimizer):
    p = rules.get(name)
    sizes = rms(p.with_c(max_lr(p, optimizer)), training=True, optimizer=optimizer)
    assert {sizes[f"Δh{i}"] for i in range(1, 6)} == {F(0)}


def test_a_rate_too_large_shows_everywhere_downstream():
    p = rules.get("mup").with_c({"embedding": 0})  # n^{1/2} too fast
    sizes = rms(p, training=True)
    assert [sizes[f"Δh{i}"] for i in range(1, 6)] == [F(1, 2)] * 5
    behind_norms = rms(
        p, training=True, norm=True
    )  # a normalized h cannot change by more than its size
    assert {behind_norms[f"{x}{i}"] for x in ("h", "Δh") for i in range(1, 5)} == {F(0)}
    assert behind_norms["W'0"] == -1  # the gradient is divided by the new size of W_0 x
    assert "W'0" not in rms(rules.get("mup").with_c({"hidden": 0}), training=True, norm=True)


@pytest.mark.parametrize("depth", [0, -1, 2.5, True, None, "3"])
def test_depth_must_be_a_count(depth):
    with refuses("invalid-argument", argument="depth"):
        rms(rules.get("sp"), depth=depth)


def test_numpy_counts_are_counts():
    assert rms(rules.get("sp"), depth=np.int64(2)) == rms(rules.get("sp"), depth=2)  # pyright: ignore[reportArgumentType]
