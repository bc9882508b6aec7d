"""Equivalence of rules: two rules that agree in the folded gauge train networks identically."""

from orderone.theory.exponents.parameterization import Rule, canonical, read_rule
from orderone.theory.exponents.solver import solve
from orderone.theory.exponents.updates import LawInput


def equivalent(p: Rule, q: Rule, optimizer: LawInput = "adam") -> bool:
    """Return whether p and q train the same network identically, on the roles that both have.

    If the library derived the rates of both rules, it derives them again for `optimizer`:
    `rules.get("mup")` and `rules.get("mf")` are equivalent under every optimizer. Rates that the
    user set or shifted are compared unchanged.
    """
    p = read_rule(p)
    q = read_rule(q)
    if p.rates_for and q.rates_for:
        p = p.with_c(solve(p, optimizer, p.rates_for[1]).c)
        q = q.with_c(solve(q, optimizer, q.rates_for[1]).c)
    left = canonical(p, optimizer)
    right = canonical(q, optimizer)
    for role in left.roles:
        if role not in right.roles:
            continue
        if left.b[role] != right.b[role] or left.c[role] != right.c[role]:
            return False
    return True
