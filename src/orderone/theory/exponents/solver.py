"""Largest stable learning rates: stability conditions, and the linear program that minimises c.

The conditions of S0 are linear inequalities in c (learning rates) and r (changes),

    RMS(dh_l) = O(n^{-r_l}),  r_l >= 0                                        S0 (13)

    (6)   a_0 + b_0 = 0                      the embedding's output is of order one
    (7)   a_l + b_l = 1/2                    so is every hidden layer's
    (8)   a + b >= 1/2                       the logits do not grow           (readout)
    (14)  r_1 <= a_0 + e_0                   change of the embedding's output
    (18)  r_{l+1} <= a + b + r_l - omega     W dh
    (19)  r_{l+1} <= a + e - alpha           dW h
    (20)  r_{l+1} <= a + e + r_l - u         dW dh

The exponent of h_l is subtracted on the right side of (19); it is 0 where (6) and (7) hold.

e = c + (a constant of the optimizer): erratum S0.4. With r = 0 throughout, (14) and (18)-(20) are
the paper's (21)-(24); a network whose deeper changes vanish (r > 0) may satisfy (18) although (24)
is broken, so r stays an unknown here.

Hidden layers are alike. The exponent of a change after k of them is therefore linear in the number
of layers that pass it on by (18) and the number that pass it on by (20), and in the layer where it
begins. A linear function on this simplex is smallest at a vertex, so all layers after the first can
be merged exactly: k times (18) or k times (20) (`together`).

Normalization enforces (6) and (7). A tied embedding is one tensor in two places: one
initialization, one rate (S0 A.1.2). Attention adds one condition on its scores (see `attention`).

**The program.** Every rate is as large as the others allow. If one matrix can only have a larger
rate when another has a smaller one, the sum of their exponents decides; between equal sums, the
matrix nearer to the input gets the larger rate. Vectors come last: their rates limit no others.
Each answer comes with the chain of conditions that limits it.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from orderone.core.errors import InputError, instance, one_of, switch
from orderone.core.exact import HALF, ONE, ZERO, count
from orderone.core.inputs import ConstraintsInput, Count
from orderone.core.roles import MATRIX_ROLES, Role
from orderone.theory.exponents.attention import Attention, AttentionInput
from orderone.theory.exponents.constraints import Constraint, read_constraints
from orderone.theory.exponents.laws import UpdateLaw
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
    LawInput,
    read_alignment,
    update_law,
)
from orderone.theory.linear_program import Conflict, Optimum, minimize

# --- conditions -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Condition:
    """Condition sum(terms[v] * v) + constant >= 0, or equality == 0."""

    code: str  # the paper's equation, "(19)"
    role: str
    text: str  # the inequality in the paper's letters, at r_{l+1} = 0
    subject: str  # the quantity that grows if it fails
    terms: Mapping[str, Fraction]
    constant: Fraction
    equality: bool = False
    change: str | None = None  # the r that this condition bounds from above

    def __str__(self) -> str:
        return f"{self.code} {self.role}: {self.subject}, {self.text}"

    __repr__ = __str__

    def value(self, at: Mapping[str, Fraction]) -> Fraction:
        """Return the left side; if negative, the exponent by which the condition fails."""
        return sum((weight * at[name] for name, weight in self.terms.items()), self.constant)


@dataclass(frozen=True)
class Network:
    """Network with `depth` hidden layers and a rule: the input of the conditions."""

    p: Parameterization
    law: UpdateLaw
    alignment: Alignment
    depth: Count
    norm: bool = False
    tied: bool = False
    attention: AttentionInput = None

    def __post_init__(self) -> None:
        depth = count(self.depth, "depth", most=1000)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "norm", switch(self.norm, "norm"))
        object.__setattr__(self, "tied", switch(self.tied, "tied"))
        if self.attention is not None:
            remedy = "pass Attention(power='1/2', growth=1)"
            instance(self.attention, Attention, "attention", remedy)


def init_conditions(net: Network) -> Iterator[Condition]:
    """Yield (6)-(8), the conditions on a and b at initialization."""
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
    """Yield (14), (18)-(20) and r >= 0, for every layer, or with hidden layers `together`.

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
    """Consecutive layers of one role that share their conditions."""

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
    """Yield (18)-(20) of a hidden or readout block.

    `rest` is a + e - c, and `h` is the exponent of the input.
    """
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
    """Return the r that follow from the rates `c`, and the c.

    r_1, then r_2, ... is the smallest of its bounds.
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
    "a tied tensor needs equal initial sizes of embedding and readout: use gauge(p, 'unit',"
    " optimizer)"
)


class InfeasibleError(InputError):
    """No learning rates satisfy the conditions.

    `conflict` is a minimal set of conditions that contradict one another.
    """

    conflict: Sequence[Condition]

    def __init__(
        self,
        message: str,
        code: str = "infeasible-rates",
        *,
        argument: str | None = None,
        conflict: Sequence[Condition] = (),
    ):
        super().__init__(message, code, argument=argument)
        self.conflict = conflict

    def __reduce__(self) -> tuple[object, ...]:
        """Restore `conflict` too after pickling."""
        return (*super().__reduce__(), {"conflict": self.conflict})


@dataclass(frozen=True, repr=False)
class Solution:
    """Result of `solve`: the smallest c, the r, and the conditions that limit each c.

    If no rates satisfy the conditions, the result is false and `conflict` says why. `broken` lists
    conditions on the initialization, (6)-(8), that fail for any learning rates.
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
            lines.append(f"fails at initialization, for any learning rates: {condition}")
        return "\n".join(lines)

    __repr__ = __str__

    def _conflict_text(self) -> str:
        lines = ["infeasible: these conditions cannot hold together:"]
        lines += dict.fromkeys(f"  {condition}" for condition in self.conflict)
        tied = [condition for condition in self.conflict if condition.code == "(tied)"]
        lines.append(TIED_REMEDY if tied else "relax one of them")
        return "\n".join(lines)

    def why(self, role: str) -> str:
        """Return the conditions that limit c_role, each once although several layers share it."""
        chain = self.binding[one_of(role, self.binding, "role with a rate")]
        reasons = [f"{k.code} {k.role} ({k.subject})" for k in chain if k.code != "(13)"]
        return "; ".join(dict.fromkeys(reasons))


def max_lr(
    p: Rule,
    optimizer: LawInput = "adam",
    alignment: AlignmentInput = "full",
    *,
    constraints: ConstraintsInput = (),
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: AttentionInput = None,
) -> Exponents:
    """Return {embedding, hidden, readout} -> c, the exponents of the largest stable rates n^{-c}.

    p.c is not used. `alignment` says what stable means: "full" is the assumption of S0 Table 1,
    which training violates at the readout; "worst" takes this into account.

    `solve` takes the same arguments and also returns the exponent of vectors and the reasons.
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
        message = f"{p.name}: {solution}"
        raise InfeasibleError(message, "infeasible-rates", conflict=solution.conflict)
    return {role: solution.c[role] for role in MATRIX_ROLES}


def solve(
    p: Rule,
    optimizer: LawInput = "adam",
    alignment: AlignmentInput = "full",
    *,
    constraints: ConstraintsInput = (),
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: AttentionInput = None,
) -> Solution:
    """Solve like `max_lr`, with reasons.

    If no rates satisfy the conditions, return a false Solution with its `conflict`.
    """
    p = read_rule(p)
    net = Network(p, update_law(optimizer), read_alignment(alignment), depth, norm, tied, attention)
    user_conditions: list[Condition] = []
    if not (isinstance(constraints, tuple) and not constraints):  # an array has no `!=`
        for constraint in read_constraints(constraints, p.roles):
            user_conditions.append(_user_condition(constraint))
    broken = [k for k in init_conditions(net) if k.constant < 0 or (k.equality and k.constant > 0)]
    conditions = [*update_conditions(net, together=True), *user_conditions]
    broken_ties = [k for k in broken if k.code == "(tied)"]
    c = _largest_rates(p.roles, [*conditions, *broken_ties])
    if isinstance(c, Conflict):
        return Solution({}, {}, {}, c.constraints, broken)
    c_and_r = changes(list(update_conditions(net)), c)
    r = {name: value for name, value in c_and_r.items() if name.startswith("r_")}
    reasons = {role: _reason(role, c, conditions) for role in p.roles}
    return Solution(c, r, reasons, broken=broken)


def _user_condition(user: Constraint) -> Condition:
    return Condition(
        "(yours)", "user", user.text, "constraint", user.terms, user.constant, user.equality
    )


def _largest_rates(
    roles: Sequence[str], conditions: list[Condition]
) -> Exponents | Conflict[Condition]:
    """Minimise the sum over the matrices, then each c in the order of the roles.

    Each optimum is a condition of the problems after it.
    """
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
    """Return a conflict, if possible without the conditions that pass changes between layers."""
    for left_out in (("(18)", "(20)"), ("(20)",), ()):
        outcome = minimize({}, [k for k in conditions if not k.code.startswith(left_out)])
        if isinstance(outcome, Conflict):
            return outcome
    raise AssertionError("the conditions do not conflict")


def _reason(role: str, c: Exponents, conditions: list[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that limit c_role while the other rates are fixed.

    They are those with a positive dual price in a separate linear program.
    """
    fixed = {f"c_{other}": value for other, value in c.items() if other != role}
    original = {_insert(condition, fixed): condition for condition in conditions}
    # prefer reasons without (20), if (19) is enough
    without_20 = [k for k in original if not k.code.startswith("(20)")]
    for candidates in (without_20, list(original)):
        optimum = minimize({f"c_{role}": ONE}, candidates)
        if isinstance(optimum, Optimum) and optimum.value == c[role]:
            return tuple(original[k] for k in optimum.because)
    raise AssertionError(f"no conditions limit c_{role}")


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
