"""The largest stable learning rates, exactly: stability conditions, and the linear program that
minimises the exponents c subject to them.

The conditions of S0 are linear inequalities in c (learning rates) and r (changes),

    RMS(dh_l) = O(n^{-r_l}),  r_l >= 0                                        S0 (13)

    (6)   a_0 + b_0 = 0                      the embedding's output is of order one
    (7)   a_l + b_l = 1/2                    so is every hidden layer's
    (8)   a + b >= 1/2                       the logits do not grow           (readout)
    (14)  r_1 <= a_0 + e_0                   change of the embedding's output
    (18)  r_{l+1} <= a + b + r_l - omega     W dh
    (19)  r_{l+1} <= a + e - alpha           dW h
    (20)  r_{l+1} <= a + e + r_l - u         dW dh

The right side of (19) is less the exponent of h_l, which is 0 where (6) and (7) hold.

e = c + (a constant of the optimizer): erratum S0.4. With r = 0 throughout, (14) and (18)-(20) are
the paper's (21)-(24); a network whose deeper changes vanish (r > 0) may satisfy (18) although (24)
is broken, so r stays an unknown here.

Hidden layers are alike, so what a change becomes on its way through k of them is linear in how many
of them carried it (18) and how many multiplied it (20), and in where it set out. A linear function
on such a simplex is smallest at a vertex: all layers after the first may be taken together, k times
(18) or k times (20), and nothing is lost (`together`).

Normalization makes (6) and (7) hold by itself. A tied embedding is one tensor in two places: one
initialization, one rate (S0 A.1.2). Attention adds one condition on its scores (see `attention`).

**The program.** Every rate is as large as the others allow. Where matrices trade one rate against
another, the sum of their exponents decides, and between equal sums the one nearer to the input is
served first: then changes start large. Vectors, whose rates cost nothing, come last. Each answer
comes with the chain of conditions that stops it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from orderone.core.errors import instance, one_of
from orderone.core.exact import HALF, ONE, ZERO, count
from orderone.core.inputs import ConstraintsInput, Count, Name
from orderone.core.roles import MATRIX_ROLES, Role
from orderone.theory.exponents.attention import Attention, AttentionInput
from orderone.theory.exponents.constraints import Constraint, read_constraints
from orderone.theory.exponents.parameterization import (
    Exponents,
    Parameterization,
    Rule,
    activation_exponents,
    gradient_exponents,
    layer_roles,
    plain,
    read_rule,
)
from orderone.theory.exponents.updates import (
    Alignment,
    AlignmentInput,
    UpdateLaw,
    read_alignment,
    update_law,
)
from orderone.theory.linear_program import Conflict, Optimum, minimize

# --- conditions -------------------------------------------------------------------------------


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
        """Return the left side; negative by as much as the condition fails."""
        return sum((weight * at[name] for name, weight in self.terms.items()), self.constant)


@dataclass(frozen=True)
class Network:
    """A rule in a network of `depth` hidden layers: what the conditions are about."""

    p: Parameterization
    law: UpdateLaw
    alignment: Alignment
    depth: Count
    norm: bool = False
    tied: bool = False
    attention: AttentionInput = None

    def __post_init__(self) -> None:
        depth = count(self.depth, "depth (the number of hidden layers)", most=1000)
        object.__setattr__(self, "depth", depth)
        if self.attention is not None:
            remedy = "make one: Attention(power='1/2', growth=1)"
            instance(self.attention, Attention, "attention", remedy)


def init_conditions(net: Network) -> Iterator[Condition]:
    """Yield (6)-(8): what a and b must satisfy before any update."""
    p = plain(net.p, net.norm)

    def condition(
        code: str, role: str, text: str, subject: str, margin: Fraction, equality: bool = False
    ) -> Condition:
        return Condition(code, role, text, f"{subject} at initialization", {}, margin, equality)

    embedding = p.a[Role.EMBEDDING] + p.b[Role.EMBEDDING]
    yield condition("(6)", Role.EMBEDDING, "a + b = 0", "h_1", embedding, equality=True)
    hidden = p.a[Role.HIDDEN] + p.b[Role.HIDDEN] - HALF
    yield condition("(7)", Role.HIDDEN, "a + b = 1/2", "h", hidden, equality=True)
    readout = p.a[Role.READOUT] + p.b[Role.READOUT] - HALF
    yield condition("(8)", Role.READOUT, "a + b >= 1/2", "logits", readout)
    if Role.VECTOR in p.roles:
        vector = p.a[Role.VECTOR] + p.b[Role.VECTOR]
        yield condition("(6)", Role.VECTOR, "a + b >= 0", "biases", vector)
    if net.tied:
        gap = net.p.b[Role.EMBEDDING] - net.p.b[Role.READOUT]
        subject = "one initial variance"
        yield Condition("(tied)", Role.EMBEDDING, "b = b_readout", subject, {}, gap, equality=True)
    if net.attention:
        score = net.attention.score_at_init(net.p)
        yield condition("(S0 sec. 2)", "scores", net.attention.text, "q k", -score)


def update_conditions(net: Network, together: bool = False) -> Iterator[Condition]:
    """Yield (14), (18)-(20) and r >= 0, for every layer or with like layers `together`.

    The unknowns are `c_role` and `r_l`.
    """
    p = plain(net.p, net.norm)
    g = gradient_exponents(p, net.depth)
    h = activation_exponents(p, net.depth)
    rest = {  # a + e - c
        role: p.a[role] + net.law.offset(role, p.b[role], g[role]) for role in p.roles
    }
    blocks = list(_blocks(net.depth, together))
    for block in blocks:
        if block.role == Role.EMBEDDING:
            yield block.bound(
                "(14)/(21)", "a + e >= 0", "change of h_1", rest[block.role], {block.rate: ONE}
            )
        else:
            yield from _sum_conditions(block, net, p, rest[block.role], h[block.last])
        if Role.VECTOR in p.roles and block.role != Role.READOUT:  # every layer may add a bias
            bias = block.bound(
                "(14)/(21)", "a + e >= 0", "change of biases", rest[Role.VECTOR], {"c_vector": ONE}
            )
            yield replace(bias, role=Role.VECTOR)
        if net.attention and block.role == Role.HIDDEN:
            slack = net.attention.slack(net.p, net.alignment)
            text = net.attention.text
            yield Condition("(S0 sec. 2)", "scores", text, "q Δk", {block.after: ONE}, slack)
    for block in blocks:
        layer = block.last + 1
        r = block.after
        yield Condition("(13)", f"h_{layer}", f"{r} >= 0", f"Δh_{layer}", {r: ONE}, ZERO)
    if net.tied:
        terms = {"c_embedding": ONE, "c_readout": -ONE}
        subject = "one learning rate"
        yield Condition(
            "(tied)", Role.EMBEDDING, "c = c_readout", subject, terms, ZERO, equality=True
        )


class _Block(NamedTuple):
    """Like layers, one after the other, that the conditions take together."""

    role: str
    last: int
    layers: int

    @property
    def before(self) -> str:
        return f"r_{self.last + 1 - self.layers}"

    @property
    def after(self) -> str:
        return f"r_{self.last + 1}"

    @property
    def rate(self) -> str:
        return f"c_{self.role}"

    def bound(
        self, code: str, text: str, subject: str, constant: Fraction, terms: dict[str, Fraction]
    ) -> Condition:
        """Return the condition r_after <= terms + constant."""
        terms = {self.after: -ONE, **terms}
        return Condition(code, self.role, text, subject, terms, constant, change=self.after)


def _blocks(depth: int, together: bool) -> Iterator[_Block]:
    for layer, role in enumerate(layer_roles(depth)):
        if not together or layer < 2 or layer > depth:
            yield _Block(role, layer, 1)
        elif layer == depth:
            yield _Block(role, layer, depth - 1)


def _sum_conditions(
    block: _Block, net: Network, p: Parameterization, rest: Fraction, h: Fraction
) -> Iterator[Condition]:
    """Yield (18)-(20) of a hidden or readout block; `rest` is a + e - c, `h` the exponent of its
    input."""
    role = block.role
    k = Fraction(block.layers)
    omega = net.alignment.omega[role]
    alpha = net.law.reach(role, net.alignment.alpha[role])
    u = net.law.reach(role, net.alignment.u[role])
    into = "the next layer"
    code = "(18)/(23)"
    if role == Role.READOUT:
        into = "the logits"
        code = "(18)/(24)"
    carried = k * (p.a[role] + p.b[role] - omega)
    yield block.bound(code, "a + b + r >= omega", f"W Δh into {into}", carried, {block.before: ONE})
    fresh = rest - alpha - h
    yield block.bound("(19)/(22)", "a + e >= alpha", f"ΔW h into {into}", fresh, {block.rate: ONE})
    mixed = k * (rest - u)
    terms = {block.rate: k, block.before: ONE}
    yield block.bound("(20)/(22)", "a + e + r >= u", f"ΔW Δh into {into}", mixed, terms)


def changes(conditions: Sequence[Condition], c: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return the r that the rates `c` give, together with the c.

    Every bound on r_1, then on r_2, ... is taken at its smallest.
    """
    at = {f"c_{role}": value for role, value in c.items()}
    bounds: dict[str, list[Condition]] = {}
    for condition in conditions:
        if condition.change:
            bounds.setdefault(condition.change, []).append(condition)
    for name, bounds_on_r in bounds.items():
        at[name] = ZERO
        at[name] = min(condition.value(at) for condition in bounds_on_r)
    return at


# --- the linear program -----------------------------------------------------------------------

TIED_REMEDY = (
    "a tied tensor needs a gauge in which embedding and readout start alike: gauge(p, 'unit',"
    " optimizer)"
)


class InfeasibleError(ValueError):
    """No learning rates satisfy the conditions; `conflict` holds some that contradict one another,
    none superfluous."""

    conflict: Sequence[Condition]

    def __init__(self, message: str, conflict: Sequence[Condition]):
        super().__init__(message)
        self.conflict = conflict


@dataclass(frozen=True, repr=False)
class Solution:
    """c and r at the optimum and, per role, the conditions that keep c from falling; or the
    conflict.

    `broken` lists conditions on the initialization, (6)-(8), that fail already and that no learning
    rate can mend.
    """

    c: Exponents
    r: Exponents
    binding: Mapping[str, Sequence[Condition]]
    conflict: Sequence[Condition] = ()
    broken: Sequence[Condition] = ()

    def __bool__(self) -> bool:
        return not self.conflict

    def __str__(self) -> str:
        if self.conflict:
            return self._conflict_text()
        lines = [f"c_{role} = {self.c[role]} because of {self.why(role)}" for role in self.c]
        for condition in self.broken:
            lines.append(f"broken at initialization, whatever the rates: {condition}")
        return "\n".join(lines)

    __repr__ = __str__

    def _conflict_text(self) -> str:
        lines = ["infeasible; these conditions cannot hold together:"]
        lines += dict.fromkeys(f"  {condition}" for condition in self.conflict)
        tied = [condition for condition in self.conflict if condition.code == "(tied)"]
        lines.append(TIED_REMEDY if tied else "relax one of them")
        return "\n".join(lines)

    def why(self, role: str) -> str:
        """Return the conditions that stop c_role, each named once although several layers share
        it."""
        chain = self.binding[one_of(role, self.binding, "role with a rate")]
        reasons = [f"{k.code} {k.role} ({k.subject})" for k in chain if k.code != "(13)"]
        return "; ".join(dict.fromkeys(reasons))


def max_lr(
    p: Rule,
    optimizer: Name = "adam",
    alignment: AlignmentInput = "full",
    *,
    constraints: ConstraintsInput = (),
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: AttentionInput = None,
) -> Exponents:
    """Learning-rate exponents {embedding, hidden, readout} -> c of the largest stable rates n^{-c}.
    p.c plays no part.

    "Stable" is under `alignment`: "full" is the assumption of S0 Table 1, which training breaks at
    the readout; "worst" allows for that.

    `solve` takes the same arguments and also tells the vectors' exponent and the reasons.
    """
    solution = solve(
        p,
        optimizer,
        alignment,
        constraints=constraints,
        depth=depth,
        norm=norm,
        tied=tied,
        attention=attention,
    )
    if not solution:
        raise InfeasibleError(f"{p.name}: {solution}", solution.conflict)
    return {role: solution.c[role] for role in MATRIX_ROLES}


def solve(
    p: Rule,
    optimizer: Name = "adam",
    alignment: AlignmentInput = "full",
    *,
    constraints: ConstraintsInput = (),
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: AttentionInput = None,
) -> Solution:
    """As `max_lr`, with reasons. An infeasible problem is a result too: a false Solution with its
    `conflict`."""
    p = read_rule(p)
    net = Network(p, update_law(optimizer), read_alignment(alignment), depth, norm, tied, attention)
    wishes: list[Condition] = []
    if constraints != ():
        wishes = [_user_condition(wish) for wish in read_constraints(constraints, p.roles)]
    broken = [k for k in init_conditions(net) if k.constant < 0 or (k.equality and k.constant > 0)]
    conditions = [*update_conditions(net, together=True), *wishes]
    broken_ties = [k for k in broken if k.code == "(tied)"]
    c = _largest_rates(p.roles, [*conditions, *broken_ties])
    if isinstance(c, Conflict):
        return Solution({}, {}, {}, c.constraints, broken)
    c_and_r = changes(list(update_conditions(net)), c)
    r = {name: value for name, value in c_and_r.items() if name.startswith("r_")}
    reasons = {role: _reason(role, c, conditions) for role in p.roles}
    return Solution(c, r, reasons, broken=broken)


def _user_condition(wish: Constraint) -> Condition:
    return Condition(
        "(given)", "user", wish.text, "asked for", wish.terms, wish.constant, wish.equality
    )


def _largest_rates(
    roles: Sequence[str], conditions: list[Condition]
) -> Exponents | Conflict[Condition]:
    """Minimise the sum over the matrices, then c by c in the order of the roles, each goal kept for
    the ones after it."""
    goals = [{"c_embedding": ONE, "c_hidden": ONE, "c_readout": ONE}]
    for role in roles:
        goals.append({f"c_{role}": ONE})
    reached: list[Condition] = []
    x: dict[str, Fraction] = {}
    for goal in goals:
        optimum = minimize(goal, [*conditions, *reached])
        if isinstance(optimum, Conflict):
            return _simplest_conflict(conditions)
        x = optimum.x
        reached.append(Condition("(reached)", "", "", "", goal, -optimum.value, equality=True))
    return {role: x[f"c_{role}"] for role in roles}


def _simplest_conflict(conditions: list[Condition]) -> Conflict[Condition]:
    """Return the conflict without the conditions that carry changes from layer to layer, if it is
    there without them."""
    for left_out in (("(18)", "(20)"), ("(20)",), ()):
        outcome = minimize({}, [k for k in conditions if not k.code.startswith(left_out)])
        if isinstance(outcome, Conflict):
            return outcome
    raise AssertionError("the conditions do not conflict")


def _reason(role: str, c: Exponents, conditions: list[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that stop c_role, the other rates being what they are: the priced ones
    of a program of its own."""
    fixed = {f"c_{other}": value for other, value in c.items() if other != role}
    original = {_insert(condition, fixed): condition for condition in conditions}
    # where (19) alone says it, (14) and (20) need not
    without_20 = [k for k in original if not k.code.startswith("(20)")]
    for candidates in (without_20, list(original)):
        optimum = minimize({f"c_{role}": ONE}, candidates)
        if isinstance(optimum, Optimum) and optimum.value == c[role]:
            return tuple(original[k] for k in optimum.because)
    raise AssertionError(f"no conditions stop c_{role}")


def _insert(condition: Condition, values: Exponents) -> Condition:
    """Return the condition with some unknowns replaced by their values."""
    unknown: dict[str, Fraction] = {}
    constant = condition.constant
    for name, weight in condition.terms.items():
        if name in values:
            constant += weight * values[name]
        else:
            unknown[name] = weight
    return replace(condition, terms=unknown, constant=constant)
