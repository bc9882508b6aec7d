"""Gauge freedom: rules that give the same network and the same training, step by step.

    a + theta,   b - theta,   c - k theta          k = 2 (SGD), 1 (Adam, Muon), 0 (Adafactor)         S0 1.2.1

The paper prints k = 1; that is Adam's (erratum S0.3). Three gauges have names, because a rule is applied in one of them:

    folded   a = 0: no multipliers; everything sits in initialization and learning rate
    unit     b = 0: every weight starts with variance one; everything else sits in multiplier and learning rate
    paper    the multipliers the rule was written with
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.exact import Exact
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import Parameterization, read_exponents

GAUGES = ("folded", "unit", "paper")


def shift(p: Parameterization, theta: Mapping[str, Exact], optimizer: str = "adam") -> Parameterization:
    """`p` with theta[role] moved from initialization into the multiplier, and c such that training stays the same."""
    moved = read_exponents(theta, "theta", partial=True)
    for role in moved:
        one_of(role, p.roles, f"role of {p.name}")
    by = {role: moved.get(role, Fraction(0)) for role in p.roles}
    weight = update_law(optimizer).gauge_weight
    return replace(
        p,
        a={role: p.a[role] + by[role] for role in p.roles},
        b={role: p.b[role] - by[role] for role in p.roles},
        c={role: p.c[role] - weight * by[role] for role in p.roles},
    )


def gauge(p: Parameterization, name: str, optimizer: str = "adam") -> Parameterization:
    """`p` in the gauge `folded`, `unit` or `paper`."""
    target = {
        "folded": {role: -p.a[role] for role in p.roles},
        "unit": dict(p.b),
        "paper": {role: p.own[role] - p.a[role] for role in p.roles},
    }
    return shift(p, target[one_of(name, GAUGES, "gauge")], optimizer)


def canonical(p: Parameterization, optimizer: str = "adam") -> Parameterization:
    """The representative of p's equivalence class: the folded one."""
    return gauge(p, "folded", optimizer)


def equivalent(p: Parameterization, q: Parameterization, optimizer: str = "adam") -> bool:
    """Do p and q, with the rates p.c and q.c, train the same network in the same way? Compares the roles both have."""
    left, right = canonical(p, optimizer), canonical(q, optimizer)
    shared = [role for role in left.roles if role in right.roles]
    return all(left.b[role] == right.b[role] and left.c[role] == right.c[role] for role in shared)
