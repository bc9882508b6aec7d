"""abc-parameterizations: three exact exponents per role, sizes at initialization, and gauges.

    h_{l+1} = n^{-a_l} W_l h_l,    Var(W_l) = n^{-2 b_l},    eta_l = C n^{-c_l}   S0 (1), (2), (11)

n is the width. The role of a tensor says which of its dimensions grow with the width:

    embedding   n x V    fan-in fixed:  W_0, patch and positional embeddings
    hidden      n x n    both grow:     W_1 ... W_L, attention and MLP matrices
    readout     V x n    fan-out fixed: W_{L+1}
    vector      n        biases and normalization gains: an embedding with the constant input 1

A tensor without a growing dimension (a bias of the readout) has no role: its exponents are all 0.

**Sizes at initialization**, for the bigram model (1) with L hidden layers. A sum of n independent
terms is n^{1/2} times one term:

    h_1      = n^{-(a_0 + b_0)},           h_{l+1} = n^{1/2 - (a_l + b_l)} h_l            S0 (3)
    h'_{L+2} = Theta(1)
    h'_{L+1} = n^{-(a + b)_{L+1}},         h'_l = n^{1/2 - (a_l + b_l)} h'_{l+1}          S0 (4)
    W'_l     = n^{-a_l} h'_{l+1} h_l                                                      S0 (5)

The recursion gives Var(W'_l) = n^{L - 1 - 2(S - b_l)} for a hidden layer; the exponent printed in
(5) is 2 too large (erratum S0.1). The softmax gradient h'_{L+2} is bounded, so its second moment is
of order one (errata S0.2, S0.10). For l = 0 and l = L+1 the exponent L - 2(S - b_l) is the same if
b is: the two gradients of a tied tensor match.

RMSNorm after every layer but the last sets RMS(h_l) = 1 and divides the gradient by RMS(u_l) (Lemma
D.2). A multiplier 1/RMS(u_l) does the same: a normalized network equals the plain one with a_l
changed such that (6) and (7) hold, and Lemma D.3 follows without a second calculation.

**Gauges**: rules that give the same network and the same training, step by step.

    a + theta,   b - theta,   c - k theta    k = 2 (SGD), 1 (Adam, Muon), 0 (Adafactor)   S0 1.2.1

The paper prints k = 1, which is right for Adam (erratum S0.3). Weight decay and Adam's eps have
separate scales, which must follow the shift. Three gauges have names, because a rule is applied in
one of them:

    folded   a = 0: no multipliers; only initialization and learning rate depend on n
    unit     b = 0: every weight starts with variance one; only multiplier and learning rate depend
             on n
    paper    the multipliers that the rule was written with

A tied embedding is one tensor, so its two uses shift together. In the folded gauge the embedding
has no multiplier, and the readout has the ratio of the two: no gauge removes this one.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of
from orderone.core.exact import HALF, ZERO, count, exact
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import Count, ExponentsInput, Name, UserInput
from orderone.core.roles import MATRIX_ROLES, ROLES, Role
from orderone.theory.exponents.updates import AlignmentInput, LawInput, update_law

Exponents: TypeAlias = dict[str, Fraction]


@dataclass(frozen=True)
class Parameterization:
    """Exponents a (multiplier), b (initial standard deviation), c (learning rate) for every role.

    `own` contains the multipliers that the rule was written with, so that `gauge` can restore them.
    `rates_for` is the optimizer and the alignment for which c was derived, or None if the user set
    c.
    """

    name: str
    a: Exponents = field(hash=False)  # `==` compares it; for a hash the name is enough
    b: Exponents = field(hash=False)
    c: Exponents = field(hash=False)
    own: Exponents = field(default_factory=dict, compare=False, repr=False)
    rates_for: tuple[LawInput, AlignmentInput] | None = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for letter in "abc":
            exponents = read_exponents(getattr(self, letter), letter)
            object.__setattr__(self, letter, FrozenDict(exponents))
        if not (set(self.a) == set(self.b) == set(self.c)):
            roles = "; ".join(
                f"{letter} has {', '.join(getattr(self, letter))}" for letter in "abc"
            )
            raise InputError(f"{self.name}: expected a, b and c with the same roles, but {roles}")
        object.__setattr__(self, "own", FrozenDict(self.own or self.a))

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.a)

    def __str__(self) -> str:
        lines = [self.name]
        for role in self.roles:
            a = str(self.a[role])
            b = str(self.b[role])
            lines.append(f"  {role:9}  a = {a:5} b = {b:5} c = {self.c[role]}")
        return "\n".join(lines)

    def with_c(self, c: ExponentsInput) -> "Parameterization":
        """Return the rule with these learning-rate exponents; roles missing in `c` keep theirs."""
        changed = read_exponents(c, "c", partial=True)
        return replace(self, c={**self.c, **changed}, rates_for=None)


Rule: TypeAlias = Annotated[Parameterization, UserInput]  # `read_rule` validates it


def read_rule(rule: Rule) -> Parameterization:
    """Return `rule`, or raise an InputError that says how to make one."""
    if isinstance(rule, Parameterization):
        return rule
    if isinstance(rule, str):
        name = f"'{rule}'"
    else:
        name = "'mup'"
    raise InputError(
        f"rule: expected a Parameterization, got {rule!r}; write rules.get({name}) or"
        " rules.custom(...)",
        "wrong-type",
        argument="rule",
    )


def read_exponents(values: ExponentsInput, letter: str, partial: bool = False) -> Exponents:
    """Return exact exponents from a mapping role -> number, or from a sequence.

    The order of a sequence is embedding, hidden, readout[, vector].
    """
    if isinstance(values, Iterable) and not isinstance(values, (str, Mapping)):
        in_order = list(values)
        if len(in_order) not in (len(MATRIX_ROLES), len(ROLES)):
            raise InputError(
                f"{letter}: expected 3 or 4 exponents in the order {', '.join(ROLES)}; got"
                f" {in_order!r}",
                argument=letter,
            )
        values = dict(zip(ROLES, in_order, strict=False))
    if not isinstance(values, Mapping):
        raise InputError(
            f"{letter}: expected exponents such as {{'embedding': 0, 'hidden': '1/2', 'readout':"
            f" 1}} or (0, '1/2', 1); got {values!r}",
            argument=letter,
        )
    by_role = {one_of(role, ROLES, f"role in {letter}"): value for role, value in values.items()}
    missing = [role for role in MATRIX_ROLES if role not in by_role]
    if missing and not partial:
        raise InputError(
            f"{letter}: expected exponents for {', '.join(MATRIX_ROLES)}; got none for"
            f" {', '.join(missing)}",
            argument=letter,
        )
    return {role: exact(by_role[role], f"{letter}[{role}]") for role in ROLES if role in by_role}


# --- sizes at initialization ------------------------------------------------------------------


def layer_roles(depth: Count) -> list[str]:
    """Return the roles of W_0 ... W_{L+1}."""
    hidden_layers = count(depth, "depth", most=1000)
    return [Role.EMBEDDING, *[Role.HIDDEN] * hidden_layers, Role.READOUT]


def plain(p: Rule, norm: bool) -> Parameterization:
    """Return `p`; with `norm`, the plain network equal to p with RMSNorm after every layer.

    The last layer has no norm.
    """
    p = read_rule(p)
    if not norm:
        return p
    a = dict(p.a)
    a[Role.EMBEDDING] = -p.b[Role.EMBEDDING]  # (6): a + b = 0
    a[Role.HIDDEN] = HALF - p.b[Role.HIDDEN]  # (7): a + b = 1/2
    return replace(p, a=a)


def activation_exponents(p: Parameterization, depth: Count = 3) -> list[Fraction]:
    """Return the exponents of h_0 ... h_{L+2} at initialization: S0 (3)."""
    h = [ZERO]  # h_0 is one-hot: a single entry of size one
    for role in layer_roles(depth):
        terms = ZERO if role == Role.EMBEDDING else HALF
        h.append(h[-1] + terms - p.a[role] - p.b[role])
    return h


def backward_exponents(p: Parameterization, depth: Count = 3) -> list[Fraction]:
    """Return the exponents of h'_0 ... h'_{L+2} at initialization (h'_0 is unused): S0 (4)."""
    dh = [ZERO]
    for role in reversed(layer_roles(depth)):
        terms = HALF if role == Role.HIDDEN else ZERO  # the number V of outputs does not grow
        dh.append(dh[-1] + terms - p.a[role] - p.b[role])
    return dh[::-1]


def weight_gradients(
    p: Parameterization, h: list[Fraction], dh: list[Fraction], depth: Count = 3
) -> list[Fraction]:
    """Return the exponents of W'_0 ... W'_{L+1} for those of h and h': S0 (5)."""
    return [-p.a[role] + dh[i + 1] + h[i] for i, role in enumerate(layer_roles(depth))]


def gradient_exponents(p: Rule, depth: Count = 3) -> Exponents:
    """Return g with RMS(W') = Theta(n^{-g}) at initialization, per role.

    This is S0 (10) where (6)-(8) hold, and its generalization otherwise.
    """
    p = read_rule(p)
    dh = backward_exponents(p, depth)
    sizes = weight_gradients(p, activation_exponents(p, depth), dh, depth)
    g = {role: -size for role, size in zip(layer_roles(depth), sizes, strict=True)}
    if Role.VECTOR in p.a:  # the largest of the biases' gradients, n^{-a} h'_{l+1}
        g[Role.VECTOR] = p.a[Role.VECTOR] - max(dh[1:-1])
    return g


# --- gauges -----------------------------------------------------------------------------------

GAUGES = ("folded", "unit", "paper")


def shift(p: Rule, theta: ExponentsInput, optimizer: LawInput = "adam") -> Parameterization:
    """Return `p` with theta[role] moved from the initial size to the multiplier.

    c changes such that training is the same.
    """
    p = read_rule(p)
    moved = read_exponents(theta, "theta", partial=True)
    for role in moved:
        one_of(role, p.roles, f"role of {p.name}")
    weight = update_law(optimizer).gauge_weight
    a = dict(p.a)
    b = dict(p.b)
    c = dict(p.c)
    for role, exponent in moved.items():
        a[role] += exponent
        b[role] -= exponent
        c[role] -= weight * exponent
    return replace(p, a=a, b=b, c=c, rates_for=None)


def gauge(
    p: Rule, name: Name, optimizer: LawInput = "adam", tied: bool = False
) -> Parameterization:
    """Return `p` in the gauge `folded`, `unit` or `paper`.

    With `tied`, embedding and readout shift together.
    """
    p = read_rule(p)
    name = one_of(name, GAUGES, "gauge")
    if name == "folded":
        theta = {role: -p.a[role] for role in p.roles}
    elif name == "unit":
        theta = dict(p.b)
    else:
        theta = {role: p.own[role] - p.a[role] for role in p.roles}
    if tied:
        theta[Role.READOUT] = theta[Role.EMBEDDING]
    return shift(p, theta, optimizer)


def canonical(p: Rule, optimizer: LawInput = "adam") -> Parameterization:
    """Return p with its multipliers moved into initial sizes and learning rates (a = 0)."""
    return gauge(p, "folded", optimizer)
