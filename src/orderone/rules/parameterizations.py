"""Rules by name, and the factors that a rule gives to one tensor.

The tables below have multipliers a and initial sizes b. The learning-rate exponents c are not
written down: they are the largest stable ones, which the solver derives for the optimizer and the
alignment at hand. One rule does write them down: `standard`, which is defined by using one learning
rate for everything. `get` returns a rule with its c; `width_factors` and `depth_factors` return the
factors of a tensor whose dimensions grew. All are pure functions.

S0 is "Scale-Invariant Parameterizations" (Stratos), S2 is "Effective Theory of Transformers at
Initialization" (Dinan, Yaida & Zhang, arXiv:2304.02034).

**Width.** A rule's exponents are powers of one width n. A real tensor has two dimensions, which may
grow by different ratios, so each power of n goes to the dimension that it comes from. The rule is
folded first: its multipliers n^-a move into initial sizes and learning rates, so that a = 0
(`canonical`, the gauge "folded"). With r_in and r_out the growth of fan-in and fan-out:

    embedding, vector   r_out^-x_e        no sum over a growing dimension: the powers belong to the
                                          output
    readout             r_in^-x_r         nothing that grows is left at the output
    hidden              r_out^-x_e r_in^-(x_h - x_e)

for x = b (initial size) and x = c (learning rate), where x_e, x_h, x_r are the folded exponents of
embedding, hidden and readout. muP with Adam has folded c = 0, 1, 1; `get("mup").c` is 1/2, 1, 1/2,
because its table has a = -1/2, 0, 1/2. Both limits are right: for muP and Adam the hidden rate is
r_in^-1, for SGD it is r_out / r_in, as the spectral condition says (Yang, Simon & Bernstein 2023,
arXiv:2310.17813). Gradients belong to the output of their tensor,
RMS(W') = r_out^-g; a readout's to its input.

**Depth.** A residual branch is multiplied by r_L^-alpha, r_L = L / L_base: alpha = 1/2 is Depth-muP
(Yang, Yu, Zhu & Hayou 2023, arXiv:2310.02244, Table 1), alpha = 1 is CompleteP (Dey et al. 2025,
arXiv:2505.01618, Table 1). Together, L branches should change the residual stream by order one, so
a step must change each branch weight by r_L^(alpha - 1):

    gradient      r_L^-alpha
    Adam's rate   r_L^(alpha - 1)
    SGD's rate    r_L^(2 alpha - 1)
    Adam's eps    r_L^-alpha

for matrices, biases and gains in the branch alike; nothing changes outside the branches. These are
the entries of the tables (CompleteP: eps r_L^-alpha, bias and norm rates r_L^(alpha - 1), and at
alpha = 1 an unchanged weight decay; at alpha = 1/2 its authors leave weight decay unchanged too,
where ours keeps the product with the rate). The multiplier itself is folded into the last tensor of
the branch.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Protocol, runtime_checkable

from orderone.core.errors import one_of
from orderone.core.exact import HALF, ONE, ZERO
from orderone.core.inputs import ExponentsInput, Name, Number, UserInput
from orderone.core.roles import ROLES, Role
from orderone.theory.exponents import (
    Parameterization,
    canonical,
    gradient_exponents,
    read_alignment,
    solve,
)
from orderone.theory.exponents.parameterization import Exponents, Rule, read_exponents
from orderone.theory.exponents.updates import AlignmentInput, LawInput, UpdateLaw, update_law
from orderone.theory.scaling import is_strategy, strategy_power

# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleTable:
    """Exponents of a rule in the order embedding, hidden, readout, vector.

    `alignment` is the assumption under which the rule's authors chose its rates.
    """

    name: str
    a: ExponentsInput
    b: ExponentsInput
    c: ExponentsInput | None = None  # by default, the largest stable ones
    alignment: str = "full"


# Standard parameterization: no multipliers, variance 1/fan-in.
# S0 appendix A; equivalent to `ntk`.
SP = RuleTable(
    "sp",
    a=(0, 0, 0, 0),
    b=(0, "1/2", "1/2", 0),
)

# Neural tangent parameterization: unit variance, multipliers 1/sqrt(fan-in).
# S0 Table 1; equivalent to `sp`.
NTK = RuleTable(
    "ntk",
    a=(0, "1/2", "1/2", 0),
    b=(0, 0, 0, 0),
)

# Maximal update parameterization: the readout is divided by another sqrt(n), so that W dh in the
# logits does not grow even if W and dh are fully aligned: S0 (24) with omega = 1. S0 appendix B,
# Table 1; equivalent to `mf`.
MUP = RuleTable(
    "mup",
    a=("-1/2", 0, "1/2", 0),
    b=("1/2", "1/2", "1/2", 0),
)

# Mean field parameterization: unit variance, readout multiplier 1/n.
# S0 Table 1; equivalent to `mup`.
MF = RuleTable(
    "mf",
    a=(0, "1/2", 1, 0),
    b=(0, 0, 0, 0),
)

# The baseline of S2: the same initialization as neural-tangent and one learning rate for everything
# (Table II.1.E).
STANDARD = RuleTable(
    "standard",
    a=(0, 0, 0, 0),
    b=(0, "1/2", "1/2", 0),
    c=(0, 0, 0, 0),
    alignment="worst",
)


def between(name: str, s: Fraction) -> RuleTable:
    """Return a strategy of S2 between neural-tangent (s = 0) and maximal-update (s = 1).

    S2 writes them as a head with standard deviation n^{-(1+s)/2} and, for AdamW, rates n^{s/2}
    times the neural-tangent ones everywhere but in the head (footnotes 8 and 26): c = (1-s)/2 for
    embeddings, (3-s)/2 for hidden matrices, 1 for the head. These are not written here: the solver
    derives them for this head under the alignment `worst`. W dh must not grow in the logits, so
    dh_{L+1} has to shrink like n^{-(1-s)/2}, and with it every learning rate below.
    """
    return RuleTable(
        name,
        a=(0, 0, 0, 0),
        b=(0, "1/2", (1 + s) / 2, 0),
        alignment="worst",
    )


NEURAL_TANGENT = between("neural-tangent", Fraction(0))
HYBRID = between("hybrid", Fraction(1, 2))
MAXIMAL_UPDATE = between("maximal-update", Fraction(1))

TABLES: dict[str, RuleTable] = {
    "sp": SP,
    "ntk": NTK,
    "mup": MUP,
    "mf": MF,
    "standard": STANDARD,
    "neural-tangent": NEURAL_TANGENT,
    "hybrid": HYBRID,
    "maximal-update": MAXIMAL_UPDATE,
}

DEPTH_RULES: dict[str, Fraction] = {"sqrt": HALF, "completep": ONE}
DECAY = ("independent", "proportional")


# --- from a name to exponents ---------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Return the names that `get` accepts."""
    return tuple(TABLES)


def get(
    name: Name, optimizer: LawInput = "adam", alignment: AlignmentInput | None = None
) -> Parameterization:
    """Return the rule `name`, with c derived for this optimizer and alignment.

    By default, the alignment is the one that the authors of the rule assume. Names such as "s=1/4"
    are the rules between neural-tangent (0) and maximal-update (1).
    """
    table = _table(name)
    if table.c is None:
        assumed = table.alignment if alignment is None else alignment
        return _with_largest_rates(table.name, table.a, table.b, optimizer, assumed)
    update_law(optimizer)  # a misspelt optimizer is an error here too
    a = read_exponents(table.a, "a")
    b = read_exponents(table.b, "b")
    c = read_exponents(table.c, "c")
    return Parameterization(table.name, a, b, c)


def assumed_alignment(name: Name) -> str:
    """Return the alignment under which the authors of a rule chose its learning rates."""
    return _table(name).alignment


def custom(
    name: str,
    a: ExponentsInput,
    b: ExponentsInput,
    c: ExponentsInput | None = None,
    *,
    optimizer: LawInput = "adam",
    alignment: AlignmentInput = "full",
) -> Parameterization:
    """Return a rule from exponents per role.

    Exponents are {"embedding": 0, "hidden": "1/2", "readout": 1}, or a sequence in that order.
    Without `c`, learning rates are the largest stable ones for `optimizer` and `alignment`, and
    `vector` (biases, gains) has a = b = 0 by default. With `c`, the rule has only the roles that
    `c` names.
    """
    exponents_a = read_exponents(a, "a")
    exponents_b = read_exponents(b, "b")
    if c is None:
        exponents_a.setdefault(Role.VECTOR, ZERO)
        exponents_b.setdefault(Role.VECTOR, ZERO)
        return _with_largest_rates(name, exponents_a, exponents_b, optimizer, alignment)
    exponents_c = read_exponents(c, "c")
    only_a = {role: exponents_a.get(role, ZERO) for role in exponents_c}
    only_b = {role: exponents_b.get(role, ZERO) for role in exponents_c}
    return Parameterization(name, only_a, only_b, exponents_c)


@runtime_checkable
class Measured(Protocol):
    """A measured alignment, as `orderone.alignment` returns it."""

    def as_alignment(self) -> AlignmentInput: ...


def from_alignment(
    alignment: Annotated[Measured | AlignmentInput, UserInput],
    like: Name | Rule = "mup",
    optimizer: LawInput = "adamw",
    name: Name | None = None,
) -> Parameterization:
    """Return the rule `like` with learning rates for a measured alignment.

    `alignment` is the result of `orderone.alignment`, or has omega, alpha and u. For another
    optimizer, `plan` derives the learning rates again, under the same alignment.
    """
    # a and b of a known rule; c are the largest learning rates that are stable under the alignment
    # of the user's model, S0 (14) and (18)-(20). With less alignment than a rule assumes, its
    # learning rates are too small at large width; with more, they are too large.
    p = like if isinstance(like, Parameterization) else get(like, optimizer)
    if isinstance(alignment, Measured):
        alignment = alignment.as_alignment()
    new_name = f"{p.name}-measured" if name is None else name
    return _with_largest_rates(new_name, p.a, p.b, optimizer, read_alignment(alignment))


def _table(name: Name) -> RuleTable:
    if isinstance(name, str) and name not in TABLES and is_strategy(name):
        return between(name, strategy_power(name) or ZERO)
    return TABLES[one_of(name, TABLES, "rule")]


def _with_largest_rates(
    name: str,
    a: ExponentsInput,
    b: ExponentsInput,
    optimizer: LawInput,
    alignment: AlignmentInput,
) -> Parameterization:
    """Return the parameterization (a, b) with the largest stable c."""
    exponents_a = read_exponents(a, "a")
    start = Parameterization(
        name, exponents_a, read_exponents(b, "b"), c=dict.fromkeys(exponents_a, ZERO)
    )
    c = solve(start, optimizer, alignment).c
    return replace(start, c=c, rates_for=(optimizer, alignment))


# --- from exponents to the factors of a tensor ----------------------------------------------------


@dataclass(frozen=True)
class Factors:
    """Ratios of target to base for one tensor.

    `gradient` is the predicted ratio of gradients. `gauge` is the product of the multipliers that
    were moved in front of the tensor since the folded form of the rule.
    """

    multiplier: float = 1.0
    std: float = 1.0
    lr: float = 1.0
    gradient: float = 1.0
    gauge: float = 1.0

    def __mul__(self, other: "Factors") -> "Factors":
        return Factors(
            self.multiplier * other.multiplier,
            self.std * other.std,
            self.lr * other.lr,
            self.gradient * other.gradient,
            self.gauge * other.gauge,
        )

    def with_multiplier(self, multiplier: float, law: UpdateLaw) -> "Factors":
        """Return the factors of the same network with one more multiplier in front of the tensor.

        This is the gauge shift of S0 1.2.1, as a number.
        """
        return Factors(
            self.multiplier * multiplier,
            self.std / multiplier,
            self.lr / multiplier**law.gauge_weight,
            self.gradient * multiplier,
            self.gauge * multiplier,
        )

    def folding(self, multiplier: float, law: UpdateLaw) -> "Factors":
        """Return the factors of the tensor after a multiplier is folded into it."""
        return replace(self.with_multiplier(1 / multiplier, law), multiplier=self.multiplier)


@dataclass(frozen=True)
class Growth:
    """Ratios of the dimensions of a tensor, target over base; in absolute mode, the dimensions
    themselves."""

    fan_in: Number = 1.0
    fan_out: Number = 1.0


def width_factors(
    p: Parameterization, role: Name, growth: Growth, optimizer: LawInput = "adam"
) -> Factors:
    """Return the folded factors of a tensor of this role: no multiplier, only initialization and
    learning rate.

    `optimizer` names an update law of `theory.exponents` ("adam", "adamw", "sgd", ...).
    """
    folded, g = _folded_with_gradients(p, optimizer)
    std = _power(growth, *_exponents(folded.b, role))
    lr = _power(growth, *_exponents(folded.c, role))
    gradient = _power(growth, *_gradient_exponents(g, role))
    return Factors(1.0, std, lr, gradient)


@lru_cache
def _folded_with_gradients(
    p: Parameterization, optimizer: LawInput
) -> tuple[Parameterization, Exponents]:
    """Return the rule in the gauge "folded", and its exponents of gradients."""
    folded = canonical(p, optimizer)
    return folded, gradient_exponents(folded)


def _exponents(x: Exponents, role: Name) -> tuple[Fraction, Fraction]:
    """Return the exponents of fan-in and fan-out."""
    role = one_of(role, ROLES, "role")
    if role == Role.HIDDEN:
        return x[Role.HIDDEN] - x[Role.EMBEDDING], x[Role.EMBEDDING]
    if role == Role.READOUT:
        return x[Role.READOUT], ZERO
    return ZERO, x.get(role, x[Role.EMBEDDING])  # a vector is an embedding whose input is 1


def _gradient_exponents(g: Exponents, role: Name) -> tuple[Fraction, Fraction]:
    if role == Role.READOUT:
        return g[Role.READOUT], ZERO
    return ZERO, g.get(role, g[Role.EMBEDDING])


def _power(growth: Growth, fan_in: Fraction, fan_out: Fraction) -> float:
    if growth.fan_in == growth.fan_out:  # one power, so that r^x r^-x is exactly 1
        return growth.fan_in ** -float(fan_in + fan_out)
    return growth.fan_in ** -float(fan_in) * growth.fan_out ** -float(fan_out)


def tied_multiplier(p: Parameterization, fan_in: float, optimizer: LawInput = "adam") -> float:
    """Return the multiplier of a readout that shares its tensor with the embedding.

    No gauge shift removes it (`gauge(tied=True)`).
    """
    folded, _ = _folded_with_gradients(p, optimizer)
    return fan_in ** -float(folded.b[Role.READOUT] - folded.b[Role.EMBEDDING])


def paper_multiplier(p: Parameterization, role: Name, growth: Growth) -> float:
    """Return the multiplier in the original form of the rule."""
    if role in (Role.HIDDEN, Role.READOUT):
        return growth.fan_in ** -float(p.own[role])
    return growth.fan_out ** -float(p.own.get(role, ZERO))


def depth_factors(
    depth: Name, ratio: float, optimizer: LawInput = "adam", last: bool = False
) -> Factors:
    """Return the factors of a tensor in a residual branch.

    The multiplier of the branch is folded into its `last` tensors.
    """
    alpha = float(DEPTH_RULES[one_of(depth, DEPTH_RULES, "depth")])
    law = update_law(optimizer)
    gradient = ratio**-alpha
    inside = Factors(lr=ratio ** (alpha - 1) / gradient**law.gradient, gradient=gradient)
    if last:
        return inside.folding(ratio**-alpha, law)
    return inside


def decay_factor(
    factors: Factors,
    optimizer: LawInput,
    convention: Name = "independent",
    coupled: bool | None = None,
) -> float:
    """Return the factor of torch.optim's `weight_decay`.

    independent    a step shrinks weights by the same fraction at every size. torch's decoupled
                   optimizers, and SGD's penalty, shrink by lr * weight_decay, so weight_decay grows
                   where lr falls.
    proportional   weight_decay stays the same (without multipliers): the decay falls with lr.

    Adam adds its penalty to the gradient before it normalizes: there, "independent" preserves the
    ratio of penalty to gradient. `coupled` says that an optimizer does so; by default, "adam" does.
    """
    law = update_law(optimizer)
    if coupled is None:
        coupled = optimizer == "adam"
    is_normalized = coupled and law.gradient != 1  # SGD's penalty shrinks weights by lr times decay
    if one_of(convention, DECAY, "decay") == "proportional":  # the same in every gauge
        return factors.gauge ** float(2 if is_normalized else law.gauge_weight)
    if is_normalized:
        return factors.gradient / factors.std
    return 1 / factors.lr
