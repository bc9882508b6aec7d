"""Exponents of spectral norms: Condition A.1 of S0, |W_l|_2 = Theta(1) for l = 1 .. L+1.

With the multiplier n^{-a}, entries n^{-b} at initialization and n^{-e} in an update:

    hidden     |W|_2 = n^{1/2 - a - b}       |dW|_2 = n^{max(alpha, 1/2) - a - e}
    readout    |W|_2 = n^{1/2 - a - b}       |dW|_2 = n^{1/2 - a - e}

A matrix of independent entries has a spectral norm of the root of its larger size times an entry.
An update that is aligned with its input, |dW h| = n^{alpha - e} |h|, has at least this norm; a sign
of a matrix of rank one has alpha = 1 and reaches it (erratum S0.7). A readout has a bounded number
of rows, so its spectral norm is that of a row. The law of an optimizer may bound alpha
(`UpdateLaw.reach`).

S0: Stratos, "Scale-Invariant Parameterizations", A.2.
"""

from fractions import Fraction

from orderone.core.exact import HALF, ZERO
from orderone.core.inputs import Count
from orderone.core.roles import Role
from orderone.theory.exponents.parameterization import (
    Exponents,
    Rule,
    gradient_exponents,
    layer_roles,
    plain,
)
from orderone.theory.exponents.updates import (
    AlignmentInput,
    LawInput,
    read_alignment,
    update_law,
)


def spectral_norms(
    p: Rule,
    depth: Count = 3,
    *,
    optimizer: LawInput = "adam",
    alignment: AlignmentInput = "full",
) -> Exponents:
    """Return exponents of |W1|_2 .. |W{L+1}|_2, and of their updates ΔW1 .. ΔW{L+1}.

    L is `depth`, the number of hidden layers. Multipliers n^{-a} are included.
    """
    p = plain(p, False)
    law = update_law(optimizer)
    align = read_alignment(alignment)
    roles = layer_roles(depth)
    gradients = gradient_exponents(p, len(roles) - 2)
    weights: dict[str, Fraction] = {}
    updates: dict[str, Fraction] = {}
    for layer, role in enumerate(roles):
        if role == Role.EMBEDDING:
            continue
        update = p.a[role] + p.c[role] + law.offset(role, p.b[role], gradients[role])
        reach = HALF
        if role == Role.HIDDEN:
            reach = max(HALF, law.reach(role, align.alpha[role]))
        weights[f"W{layer}"] = HALF - p.a[role] - p.b[role]
        updates[f"ΔW{layer}"] = reach - update
    return weights | updates


def keeps_spectral_norms(
    p: Rule, *, optimizer: LawInput = "adam", alignment: AlignmentInput = "full"
) -> bool:
    """Return whether Condition A.1 holds: of order one at first, and no update is larger."""
    norms = spectral_norms(p, 1, optimizer=optimizer, alignment=alignment)
    at_first = all(norms[name] == ZERO for name in ("W1", "W2"))
    return at_first and all(norms[name] <= ZERO for name in ("ΔW1", "ΔW2"))
