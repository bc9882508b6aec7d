"""Gauge freedom: rules that give the same network and the same training, step by step.

    a + theta,   b - theta,   c - k theta          k = 2 (SGD), 1 (Adam, Muon), 0 (Adafactor)
                                                   S0 1.2.1

The paper prints k = 1; that is Adam's (erratum S0.3). Weight decay and Adam's eps are not part of
this: they have scales of their own, which must follow the shift. Three gauges have names, because a
rule is applied in one of them:

    folded   a = 0: no multipliers; everything sits in initialization and learning rate
    unit     b = 0: every weight starts with variance one; everything else sits in multiplier and
             learning rate
    paper    the multipliers the rule was written with

A tied embedding is one tensor, so its two uses move together: folded, the embedding's multiplier is
gone and what is left of the readout's stays, the one multiplier that no gauge removes.
"""

from dataclasses import replace
from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.exact import ZERO
from orderone.core.inputs import ExponentsInput, Name
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import (
    Parameterization,
    Rule,
    read_exponents,
    read_rule,
)
from orderone.theory.exponents.solver import solve

GAUGES = ("folded", "unit", "paper")


def shift(p: Rule, theta: ExponentsInput, optimizer: Name = "adam") -> Parameterization:
    """`p` with theta[role] moved from initialization into the multiplier, and c such that training
    stays the same."""
    p = read_rule(p)
    moved = read_exponents(theta, "theta", partial=True)
    for role in moved:
        one_of(role, p.roles, f"role of {p.name}")
    by = {role: moved.get(role, ZERO) for role in p.roles}
    weight = update_law(optimizer).gauge_weight
    return replace(
        p,
        a={role: p.a[role] + by[role] for role in p.roles},
        b={role: p.b[role] - by[role] for role in p.roles},
        c={role: p.c[role] - weight * by[role] for role in p.roles},
        rates_for=None,
    )


def gauge(p: Rule, name: Name, optimizer: Name = "adam", tied: bool = False) -> Parameterization:
    """`p` in the gauge `folded`, `unit` or `paper`; with `tied`, embedding and readout move
    together."""
    p = read_rule(p)
    name = one_of(name, GAUGES, "gauge")
    theta = {role: _theta(p, name, role) for role in p.roles}
    return shift(p, theta | ({"readout": theta["embedding"]} if tied else {}), optimizer)


def _theta(p: Rule, name: str, role: str) -> Fraction:
    return {"folded": -p.a[role], "unit": p.b[role], "paper": p.own[role] - p.a[role]}[name]


def canonical(p: Rule, optimizer: Name = "adam") -> Parameterization:
    """The representative of p's equivalence class: the folded one."""
    return gauge(p, "folded", optimizer)


def equivalent(p: Rule, q: Rule, optimizer: Name = "adam") -> bool:
    """Do p and q train the same network in the same way? Compares the roles both have.

    If the rates of both were derived, and for another optimizer, they are derived again for this
    one: `rules.get("mup")` and `rules.get("mf")` are the same under every optimizer. Rates that
    were given, or shifted, are taken as they are.
    """
    p = read_rule(p)
    q = read_rule(q)
    if p.rates_for and q.rates_for:
        p, q = (
            p.with_c(solve(p, optimizer, align).c)
            for p, (_, align) in ((p, p.rates_for), (q, q.rates_for))
        )
    left = canonical(p, optimizer)
    right = canonical(q, optimizer)
    shared = [role for role in left.roles if role in right.roles]
    return all(left.b[role] == right.b[role] and left.c[role] == right.c[role] for role in shared)
