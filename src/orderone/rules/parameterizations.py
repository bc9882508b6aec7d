"""Rules by name: tables of exponents.

The tables below have multipliers a and initial sizes b. The learning-rate exponents c are not
written down: they are the largest stable ones, which the solver derives for the optimizer and the
alignment at hand. One rule does write them down: `standard`, which is defined by using one learning
rate for everything. `get` returns a rule with its c. `rules.axes` turns exponents into the factors
of a tensor that grew.

S0 is "Scale-Invariant Parameterizations" (Stratos), S2 is "Effective Theory of Transformers at
Initialization" (Dinan, Yaida & Zhang, arXiv:2304.02034).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Protocol, runtime_checkable

from orderone.core.errors import InputError, one_of
from orderone.core.exact import ZERO
from orderone.core.inputs import ExponentsInput, Name, UserInput
from orderone.core.roles import Role
from orderone.rules.plugins import plugin, plugins
from orderone.theory.exponents import (
    Parameterization,
    read_alignment,
    solve,
)
from orderone.theory.exponents.parameterization import Rule, read_exponents
from orderone.theory.exponents.updates import AlignmentInput, LawInput, update_law
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


# --- from a name to exponents ---------------------------------------------------------------------


def names() -> tuple[str, ...]:
    """Return the names that `get` accepts: built-in rules, and those of installed packages."""
    return (*TABLES, *(name for name in plugins(RuleTable) if name not in TABLES))


def get(
    name: Name, optimizer: LawInput = "adam", alignment: AlignmentInput | None = None
) -> Parameterization:
    """Return the rule `name`, with c derived for this optimizer and alignment.

    By default, the alignment is the one that the authors of the rule assume. Names such as "s=1/4"
    are the rules between neural-tangent (0) and maximal-update (1).
    """
    rule = table(name)
    if rule.c is None:
        if alignment is None:
            assumed = rule.alignment
        else:
            assumed = alignment
        return _with_largest_rates(rule.name, rule.a, rule.b, optimizer, assumed)
    update_law(optimizer)  # a misspelt optimizer is an error here too
    a = read_exponents(rule.a, "a")
    b = read_exponents(rule.b, "b")
    c = read_exponents(rule.c, "c")
    return Parameterization(rule.name, a, b, c)


def assumed_alignment(name: Name) -> str:
    """Return the alignment under which the authors of a rule chose its learning rates."""
    return table(name).alignment


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
    if isinstance(like, Parameterization):
        p = like
    else:
        p = get(like, optimizer)
    if isinstance(alignment, Measured):
        alignment = alignment.as_alignment()
    if name is None:
        new_name = f"{p.name}-measured"
    else:
        new_name = name
    return _with_largest_rates(new_name, p.a, p.b, optimizer, read_alignment(alignment))


def table(name: Name) -> RuleTable:
    """Return the table of a rule by its name."""
    if isinstance(name, str) and name.lower() not in TABLES:
        if is_strategy(name):
            return between(name, strategy_power(name) or ZERO)
        installed = plugin(name.lower(), RuleTable)
        if installed is not None:
            return installed
    return TABLES[one_of(name, TABLES, "rule")]


def is_known(name: Name) -> bool:
    """Return whether `get` knows this name: of a table, of a strategy or of an installed rule."""
    try:
        table(name)
    except InputError:
        return False
    return True


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
