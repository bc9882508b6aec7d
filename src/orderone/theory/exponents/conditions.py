"""The stability conditions of S0 as linear inequalities in the exponents c (learning rates) and r (changes).

    RMS(dh_l) = O(n^{-r_l}),  r_l >= 0                                        S0 (13)

    (6)   a_0 + b_0 = 0               the embedding's output is of order one
    (7)   a_l + b_l = 1/2             so is every hidden layer's
    (8)   a + b >= 1/2                the logits do not grow                   (readout)
    (14)  r_1 <= a_0 + e_0            change of the embedding's output
    (18)  r_{l+1} <= a + b + r_l - omega     W dh
    (19)  r_{l+1} <= a + e - alpha           dW h
    (20)  r_{l+1} <= a + e + r_l - u         dW dh

e = c + (a constant of the optimizer): erratum S0.4. With r = 0 throughout, (14) and (18)-(20) are the paper's (21)-(24); a
network whose deeper changes vanish (r > 0) may satisfy (18) although (24) is broken, so r stays an unknown here.

Normalization makes (6) and (7) hold by itself. A tied embedding is one tensor in two places: one initialization, one
rate (S0 A.1.2).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from orderone.theory.exponents.alignment import Alignment
from orderone.theory.exponents.optimizers import HALF, UpdateLaw
from orderone.theory.exponents.parameterization import Parameterization
from orderone.theory.exponents.sizes import ZERO, gradient_exponents, layer_roles, normalized

ONE = Fraction(1)


@dataclass(frozen=True, eq=False)
class Condition:
    """sum(terms[v] * v) + constant >= 0, or == 0."""

    code: str  # the paper's equation, "(19)"
    role: str
    text: str  # the inequality in the paper's letters, at r_{l+1} = 0
    subject: str  # what grows if it fails
    terms: Mapping[str, Fraction]
    constant: Fraction
    equality: bool = False
    change: str | None = None  # the r that this condition bounds from above

    def __str__(self) -> str:
        return f"{self.code} {self.role}: {self.subject}, {self.text}"

    def value(self, at: Mapping[str, Fraction]) -> Fraction:
        """The left side; negative by as much as the condition fails."""
        return sum((weight * at[name] for name, weight in self.terms.items()), self.constant)


def init_conditions(p: Parameterization, norm: bool = False, tied: bool = False) -> Iterator[Condition]:
    """(6)-(8): what a and b must satisfy before any update."""
    q = normalized(p) if norm else p
    size = {role: q.a[role] + q.b[role] for role in q.roles}
    yield Condition("(6)", "embedding", "a + b = 0", "h_1 at initialization", {}, size["embedding"], equality=True)
    yield Condition("(7)", "hidden", "a + b = 1/2", "h at initialization", {}, size["hidden"] - HALF, equality=True)
    yield Condition("(8)", "readout", "a + b >= 1/2", "logits at initialization", {}, size["readout"] - HALF)
    if "vector" in q.roles:
        yield Condition("(6)", "vector", "a + b >= 0", "biases at initialization", {}, size["vector"])
    if tied:
        gap = p.b["embedding"] - p.b["readout"]
        yield Condition("(tied)", "embedding", "b = b_readout", "one initial variance", {}, gap, equality=True)


def update_conditions(
    p: Parameterization,
    law: UpdateLaw,
    alignment: Alignment,
    depth: int = 3,
    norm: bool = False,
    tied: bool = False,
) -> Iterator[Condition]:
    """(14), (18)-(20) and r >= 0, layer by layer; the unknowns are `c_role` and `r_l`."""
    p = normalized(p) if norm else p
    g = gradient_exponents(p, depth, tied)
    own = {role: p.a[role] + law.offset(role, p.b[role], g[role]) for role in p.roles}  # a + e - c

    def bound(code: str, role: str, layer: int, text: str, subject: str, constant: Fraction, *unknowns: str):
        after = f"r_{layer + 1}"
        terms = {after: -ONE, **dict.fromkeys(unknowns, ONE)}
        return Condition(code, role, text, subject, terms, constant, change=after)

    for layer, role in enumerate(layer_roles(depth)):
        before, rate = f"r_{layer}", f"c_{role}"
        if role == "embedding":
            yield bound("(14)", role, layer, "a + e >= 0", "change of h_1", own[role], rate)
        else:
            into = "the logits" if role == "readout" else "the next layer"
            omega = alignment.omega[role]
            alpha, u = law.reach(role, alignment.alpha[role]), law.reach(role, alignment.u[role])
            code, size = ("(18)/(24)" if role == "readout" else "(18)/(23)"), p.a[role] + p.b[role]
            yield bound(code, role, layer, "a + b + r >= omega", f"W Δh into {into}", size - omega, before)
            yield bound("(19)", role, layer, "a + e >= alpha", f"ΔW h into {into}", own[role] - alpha, rate)
            yield bound("(20)", role, layer, "a + e + r >= u", f"ΔW Δh into {into}", own[role] - u, rate, before)
        if "vector" in p.roles and role != "readout":  # a bias is added to whatever this layer puts out
            yield bound("(14)", "vector", layer, "a + e >= 0", "change of biases", own["vector"], "c_vector")
    for layer in range(1, depth + 3):
        yield Condition("(13)", f"h_{layer}", f"r_{layer} >= 0", f"Δh_{layer}", {f"r_{layer}": ONE}, ZERO)
    if tied:
        terms = {"c_embedding": ONE, "c_readout": -ONE}
        yield Condition("(tied)", "embedding", "c = c_readout", "one learning rate", terms, ZERO, equality=True)


def changes(conditions: list[Condition], c: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """The r that the rates `c` give: every bound on r_1, then on r_2, ... taken at its smallest."""
    at = {f"c_{role}": value for role, value in c.items()}
    for name in dict.fromkeys(k.change for k in conditions if k.change):
        at[name] = min(k.value({**at, name: ZERO}) for k in conditions if k.change == name)
    return at
