"""The stability conditions of S0 as linear inequalities in the exponents c (learning rates) and r
(changes).

    RMS(dh_l) = O(n^{-r_l}),  r_l >= 0                                        S0 (13)

    (6)   a_0 + b_0 = 0               the embedding's output is of order one
    (7)   a_l + b_l = 1/2             so is every hidden layer's
    (8)   a + b >= 1/2                the logits do not grow                   (readout)
    (14)  r_1 <= a_0 + e_0            change of the embedding's output
    (18)  r_{l+1} <= a + b + r_l - omega     W dh
    (19)  r_{l+1} <= a + e - alpha           dW h      (minus the exponent of h_l, which is 0 where
                                                       (6) and (7) hold)
    (20)  r_{l+1} <= a + e + r_l - u         dW dh

e = c + (a constant of the optimizer): erratum S0.4. With r = 0 throughout, (14) and (18)-(20) are
the paper's (21)-(24); a network whose deeper changes vanish (r > 0) may satisfy (18) although (24)
is broken, so r stays an unknown here.

Hidden layers are alike, so what a change becomes on its way through k of them is linear in how many
of them carried it (18) and how many multiplied it (20), and in where it set out. A linear function
on such a simplex is smallest at a vertex: all layers after the first may be taken together, k times
(18) or k times (20), and nothing is lost (`together`).

Normalization makes (6) and (7) hold by itself. A tied embedding is one tensor in two places: one
initialization, one rate (S0 A.1.2). Attention adds one condition on its scores (see `attention`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from orderone.core.errors import instance
from orderone.core.exact import HALF, ONE, ZERO, count
from orderone.core.inputs import Count
from orderone.theory.exponents.alignment import Alignment
from orderone.theory.exponents.attention import Attention, GivenAttention
from orderone.theory.exponents.optimizers import UpdateLaw
from orderone.theory.exponents.parameterization import Parameterization
from orderone.theory.exponents.sizes import (
    activation_exponents,
    gradient_exponents,
    layer_roles,
    plain,
)


@dataclass(frozen=True, eq=False, repr=False)
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

    __repr__ = __str__

    def value(self, at: Mapping[str, Fraction]) -> Fraction:
        """The left side; negative by as much as the condition fails."""
        return sum((weight * at[name] for name, weight in self.terms.items()), self.constant)


@dataclass(frozen=True)
class Network:
    """What the conditions are about: a rule in a network of `depth` hidden layers."""

    p: Parameterization
    law: UpdateLaw
    alignment: Alignment
    depth: Count
    norm: bool = False
    tied: bool = False
    attention: GivenAttention = None

    def __post_init__(self):
        object.__setattr__(
            self, "depth", count(self.depth, "depth (the number of hidden layers)", most=1000)
        )
        if self.attention is not None:
            instance(
                self.attention, Attention, "attention", "make one: Attention(power='1/2', growth=1)"
            )


def init_conditions(net: Network) -> Iterator[Condition]:
    """(6)-(8): what a and b must satisfy before any update."""
    p = plain(net.p, net.norm)
    size = {role: p.a[role] + p.b[role] for role in p.roles}
    yield Condition(
        "(6)",
        "embedding",
        "a + b = 0",
        "h_1 at initialization",
        {},
        size["embedding"],
        equality=True,
    )
    yield Condition(
        "(7)",
        "hidden",
        "a + b = 1/2",
        "h at initialization",
        {},
        size["hidden"] - HALF,
        equality=True,
    )
    yield Condition(
        "(8)", "readout", "a + b >= 1/2", "logits at initialization", {}, size["readout"] - HALF
    )
    if "vector" in p.roles:
        yield Condition(
            "(6)", "vector", "a + b >= 0", "biases at initialization", {}, size["vector"]
        )
    if net.tied:
        gap = net.p.b["embedding"] - net.p.b["readout"]
        yield Condition(
            "(tied)", "embedding", "b = b_readout", "one initial variance", {}, gap, equality=True
        )
    if net.attention:
        score = net.attention.score_at_init(net.p)
        yield Condition(
            "(S0 sec. 2)", "scores", net.attention.text, "q k at initialization", {}, -score
        )


def update_conditions(net: Network, together: bool = False) -> Iterator[Condition]:
    """(14), (18)-(20) and r >= 0, for every layer or with like layers `together`; the unknowns are
    `c_role` and `r_l`."""
    p = plain(net.p, net.norm)
    law = net.law
    g = gradient_exponents(p, net.depth)
    h = activation_exponents(p, net.depth)
    own = {role: p.a[role] + law.offset(role, p.b[role], g[role]) for role in p.roles}  # a + e - c

    def bound(
        code: str,
        role: str,
        text: str,
        subject: str,
        constant: Fraction,
        unknowns: Mapping[str, Fraction],
    ):
        return Condition(
            code, role, text, subject, {after: -ONE, **unknowns}, constant, change=after
        )

    blocks = list(_blocks(net.depth, together))
    for role, last, layers in blocks:
        before = f"r_{last + 1 - layers}"
        after = f"r_{last + 1}"
        rate = f"c_{role}"
        k = Fraction(layers)
        if role == "embedding":
            yield bound("(14)/(21)", role, "a + e >= 0", "change of h_1", own[role], {rate: ONE})
        else:
            into = "the logits" if role == "readout" else "the next layer"
            omega, alpha, u = (
                getattr(net.alignment, kind)[role] for kind in ("omega", "alpha", "u")
            )
            carried = p.a[role] + p.b[role] - omega
            fresh = own[role] - law.reach(role, alpha) - h[last]
            mixed = own[role] - law.reach(role, u)
            code = "(18)/(24)" if role == "readout" else "(18)/(23)"
            yield bound(
                code, role, "a + b + r >= omega", f"W Δh into {into}", k * carried, {before: ONE}
            )
            yield bound(
                "(19)/(22)", role, "a + e >= alpha", f"ΔW h into {into}", fresh, {rate: ONE}
            )
            yield bound(
                "(20)/(22)",
                role,
                "a + e + r >= u",
                f"ΔW Δh into {into}",
                k * mixed,
                {rate: k, before: ONE},
            )
        if (
            "vector" in p.roles and role != "readout"
        ):  # a bias is added to whatever this layer puts out
            yield bound(
                "(14)/(21)",
                "vector",
                "a + e >= 0",
                "change of biases",
                own["vector"],
                {"c_vector": ONE},
            )
        if net.attention and role == "hidden":
            slack = net.attention.slack(net.p, net.alignment)
            yield Condition(
                "(S0 sec. 2)", "scores", net.attention.text, "q Δk", {after: ONE}, slack
            )
    for layer in (last + 1 for _, last, _ in blocks):
        yield Condition(
            "(13)", f"h_{layer}", f"r_{layer} >= 0", f"Δh_{layer}", {f"r_{layer}": ONE}, ZERO
        )
    if net.tied:
        terms = {"c_embedding": ONE, "c_readout": -ONE}
        yield Condition(
            "(tied)", "embedding", "c = c_readout", "one learning rate", terms, ZERO, equality=True
        )


def _blocks(depth: int, together: bool) -> Iterator[tuple[str, int, int]]:
    """Role, last layer and number of layers of every block that the conditions speak of."""
    for layer, role in enumerate(layer_roles(depth)):
        if together and 2 <= layer <= depth:
            if layer == depth:
                yield role, layer, depth - 1
        else:
            yield role, layer, 1


def changes(conditions: Sequence[Condition], c: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """The r that the rates `c` give: every bound on r_1, then on r_2, ... taken at its smallest.
    Returned with the c."""
    at = {f"c_{role}": value for role, value in c.items()}
    for name in dict.fromkeys(k.change for k in conditions if k.change):
        at[name] = min(k.value({**at, name: ZERO}) for k in conditions if k.change == name)
    return at
