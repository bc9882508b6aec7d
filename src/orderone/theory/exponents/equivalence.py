"""Whether two rules train the same network in the same way: equal in the folded gauge."""

from orderone.core.inputs import Name
from orderone.theory.exponents.parameterization import Rule, canonical, read_rule
from orderone.theory.exponents.solver import solve


def equivalent(p: Rule, q: Rule, optimizer: Name = "adam") -> bool:
    """Do p and q train the same network in the same way? Compares the roles both have.

    If the rates of both were derived, and for another optimizer, they are derived again for this
    one: `rules.get("mup")` and `rules.get("mf")` are the same under every optimizer. Rates that
    were given, or shifted, are taken as they are.
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
