"""Laws of matrix optimizers: the linear program against the closed forms of Qiu et al. 2025."""

from fractions import Fraction as F
from typing import Any

import numpy as np
import pytest
from support.errors import refuses

from orderone import rules
from orderone.core.roles import MATRIX_ROLES
from orderone.rules.axes import Growth, depth_factors, width_factors
from orderone.theory.exponents import UpdateLaw, canonical, max_lr, shampoo, soap, stability
from orderone.theory.exponents.matrix_laws import SIDES, VARIANTS
from orderone.theory.exponents.updates import update_law

S0_RULES = ("sp", "ntk", "mup", "mf")
BOTH = (True, True)


def qiu_shampoo(k: float, sides: tuple[bool, bool], r_in: float, r_out: float, blocks: bool):
    """Return the rate of arXiv:2512.05620 for growing dimensions: (d_o/d_i)^(1-E) (b_o b_i)^-E."""
    out, into = sides
    power = k * (out + into)
    rate = (r_out / r_in) ** (1 - power)
    if blocks:  # of a fixed size: their number grows like the dimension that they cut
        rate *= (r_out if out else 1.0) ** -power * (r_in if into else 1.0) ** -power
    return rate


def qiu_soap(sides: tuple[bool, bool], r_in: float, r_out: float, blocks: bool) -> float:
    out, into = sides
    b_out = r_out if blocks and out else 1.0
    b_in = r_in if blocks and into else 1.0
    if sides == BOTH:
        return (r_out / r_in) ** 0.5 * (b_in * b_out) ** -0.5
    if into:
        return (r_in * b_in) ** -0.5
    return (r_out / b_out) ** 0.5 / r_in


def rate(law: str | UpdateLaw, role: str, growth: Growth) -> float:
    return width_factors(rules.get("mup", optimizer=law), role, growth, law).lr


@pytest.mark.parametrize("growth", [(4.0, 4.0), (2.0, 8.0), (9.0, 3.0)])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("blocked", [False, True])
def test_rates_are_those_of_the_closed_form(growth, sides, blocked):
    r_in, r_out = growth
    cases: list[tuple[UpdateLaw, Any]] = [
        (
            soap(sides, blocked=blocked),
            lambda into, out: qiu_soap(SIDES[sides], into, out, blocked),
        )
    ]
    for k in ("1/4", "1/2"):
        cases.append(
            (
                shampoo(k, sides, blocked=blocked),
                lambda into, out, k=k: qiu_shampoo(float(F(k)), SIDES[sides], into, out, blocked),
            )
        )
    for law, expected in cases:
        assert rate(law, "hidden", Growth(r_in, r_out)) == pytest.approx(expected(r_in, r_out))
        assert rate(law, "embedding", Growth(1, r_out)) == pytest.approx(expected(1.0, r_out))
        assert rate(law, "readout", Growth(r_in, 1)) == pytest.approx(expected(r_in, 1.0))


@pytest.mark.parametrize("k", ["1/4", "1/2"])
@pytest.mark.parametrize("sides", SIDES)
def test_depth_enters_by_the_power_of_the_gradient(k, sides):
    """CompleteP divides gradients by the depth: the rate grows like m_L^(1 - 2 E)."""
    power = float(F(k)) * sum(SIDES[sides])
    law = shampoo(k, sides)
    assert depth_factors("completep", 8.0, law).lr == pytest.approx(8.0 ** (1 - 2 * power))


@pytest.mark.parametrize("alignment", ["full", "worst"])
@pytest.mark.parametrize("name", S0_RULES)
def test_sgd_and_adam_are_spectral_laws_of_aligned_updates(name, alignment):
    p = rules.get(name)
    as_sgd = UpdateLaw(gradient=1, spectral=True)
    as_adam = UpdateLaw(spectral=True, fan_out=F(1, 2), fan_in=F(1, 2))
    assert max_lr(p, as_sgd, alignment) == max_lr(p, "sgd", alignment)
    assert max_lr(p, as_adam, alignment) == max_lr(p, "adam", alignment)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("ademamix", "adam"),
        ("schedule-free", "adam"),
        ("adam8bit", "adam"),
        ("soap-blocked", "adam"),
        ("soap-full-rank", "adam"),
        ("normuon", "muon"),
        ("soap", "muon"),
        ("shampoo", "muon"),
        ("shampoo-1/2-in", "muon"),
    ],
)
def test_names_of_one_law(name, same):
    assert update_law(name) == update_law(same)
    for rule in S0_RULES:
        assert rules.get(rule, optimizer=name).c == rules.get(rule, optimizer=same).c


def test_a_step_in_the_spectral_convention_needs_no_factor_of_the_width():
    folded = canonical(rules.get("mup", optimizer="dion"), "dion").c
    assert [folded[role] for role in MATRIX_ROLES] == [0, 0, 0]


@pytest.mark.parametrize(
    ("chosen_for", "judged_by", "power"),
    [
        ("soap", "soap-full-rank", F(1)),  # the averages have more directions than assumed
        ("shampoo", "shampoo-full-rank", F(1, 2)),
        ("shampoo-1/2", "shampoo-1/2-full-rank", F(1)),
        ("soap", "soap-blocked", F(1)),
        ("soap", "soap-in", F(1, 2)),
        ("muon", "adam", F(1)),
    ],
)
def test_rates_of_another_law_are_unstable(chosen_for, judged_by, power):
    p = rules.get("mup", optimizer=chosen_for)
    assert stability(p, chosen_for)
    verdict = stability(p, judged_by)
    assert not verdict
    hidden = [judged.margin for judged in verdict.failed if judged.condition.role == "hidden"]
    assert min(hidden) == -power
    slower = rules.get("mup", optimizer=judged_by)  # its rates are stable under both laws
    assert stability(slower, judged_by)
    assert not any(j.condition.role == "hidden" for j in stability(slower, chosen_for).failed)


def test_every_variant_has_stable_rates_by_name():
    for name, law in VARIANTS.items():
        assert stability(rules.get("mup", optimizer=name), name), name
        assert update_law(name.upper()) == law


def test_bad_laws():
    with refuses("unknown-name", argument="sides"):
        shampoo(sides="left")
    for power in (0, 2, -1):
        with refuses("invalid-argument", argument="power"):
            shampoo(power)
    with refuses("invalid-argument", argument="fan_in"):
        UpdateLaw(fan_in=F(1, 2))
    with refuses("wrong-type", argument="spectral"):
        UpdateLaw(fan_in=F(1, 2), spectral=np.zeros(2))  # type: ignore[arg-type]
    with refuses("unknown-name", argument="optimizer"):
        max_lr(rules.get("mup"), "shampoo-1/3")
