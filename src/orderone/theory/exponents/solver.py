"""The largest stable learning rates, exactly: minimise the exponents c subject to (13), (14),
(18)-(20).

Every rate is as large as the others allow. Where matrices trade one rate against another, the sum
of their exponents decides, and between equal sums the one nearer to the input is served first: then
changes start large. Vectors, whose rates cost nothing, come last. Each answer comes with the chain
of conditions that stops it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.exact import ONE
from orderone.core.inputs import ConstraintsInput, Count, Name
from orderone.theory.exponents.alignment import GivenAlignment, read_alignment
from orderone.theory.exponents.attention import GivenAttention
from orderone.theory.exponents.conditions import (
    Condition,
    Network,
    changes,
    init_conditions,
    update_conditions,
)
from orderone.theory.exponents.constraints import read_constraints
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import MATRIX_ROLES, Exponents, Rule, read_rule
from orderone.theory.linear_program import Conflict, Optimum, minimize

TIED_REMEDY = (
    "a tied tensor needs a gauge in which embedding and readout start alike: gauge(p, 'unit',"
    " optimizer)"
)


class InfeasibleError(ValueError):
    """No learning rates satisfy the conditions; `conflict` holds some that contradict one another,
    none superfluous."""

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
    binding: dict[str, Sequence[Condition]]
    conflict: Sequence[Condition] = ()
    broken: Sequence[Condition] = ()

    def __bool__(self) -> bool:
        return not self.conflict

    def __str__(self) -> str:
        if not self:
            lines = dict.fromkeys(f"  {k}" for k in self.conflict)
            if any(k.code == "(tied)" for k in self.conflict):
                remedy = TIED_REMEDY
            else:
                remedy = "relax one of them"
            return "\n".join(["infeasible; these conditions cannot hold together:", *lines, remedy])
        lines = [f"c_{role} = {self.c[role]} because of {self.why(role)}" for role in self.c]
        return "\n".join(
            lines + [f"broken at initialization, whatever the rates: {k}" for k in self.broken]
        )

    __repr__ = __str__

    def why(self, role: str) -> str:
        """The conditions that stop c_role, each named once although several layers share it."""
        chain = self.binding[one_of(role, self.binding, "role with a rate")]
        return "; ".join(
            dict.fromkeys(f"{k.code} {k.role} ({k.subject})" for k in chain if k.code != "(13)")
        )


def max_lr(
    p: Rule,
    optimizer: Name = "adam",
    alignment: GivenAlignment = "full",
    *,
    constraints: ConstraintsInput = (),
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: GivenAttention = None,
) -> Exponents:
    """Learning-rate exponents {embedding, hidden, readout} -> c of the largest stable rates n^{-c}.
    p.c plays no part.

    "Stable" is under `alignment`: "full" is the assumption of S0 Table 1, which training breaks at
    the readout; "worst" allows for that.

    `solve` takes the same arguments and also tells the vectors' exponent and the reasons.
    """
    options = {
        "constraints": constraints,
        "depth": depth,
        "norm": norm,
        "tied": tied,
        "attention": attention,
    }
    solution = solve(p, optimizer, alignment, **options)
    if not solution:
        raise InfeasibleError(f"{p.name}: {solution}", solution.conflict)
    return {role: solution.c[role] for role in MATRIX_ROLES}


def solve(
    p: Rule,
    optimizer: Name = "adam",
    alignment: GivenAlignment = "full",
    *,
    constraints: ConstraintsInput = (),
    depth: Count = 3,
    norm: bool = False,
    tied: bool = False,
    attention: GivenAttention = None,
) -> Solution:
    """As `max_lr`, with reasons. An infeasible problem is a result too: a false Solution with its
    `conflict`."""
    p = read_rule(p)
    net = Network(p, update_law(optimizer), read_alignment(alignment), depth, norm, tied, attention)
    given = read_constraints(constraints, p.roles)
    _reject_contradiction(given)
    broken = [
        k for k in init_conditions(net) if k.value({}) < 0 or (k.equality and k.value({}) > 0)
    ]
    conditions = [*update_conditions(net, together=True), *given]
    best = _largest_rates(p.roles, [*conditions, *(k for k in broken if k.code == "(tied)")])
    if isinstance(best, Conflict):
        return Solution({}, {}, {}, best.constraints, broken)
    r = {
        name: value
        for name, value in changes(list(update_conditions(net)), best).items()
        if name.startswith("r_")
    }
    return Solution(
        best, r, {role: _reason(role, best, conditions) for role in p.roles}, broken=broken
    )


def _largest_rates(
    roles: Sequence[str], conditions: list[Condition]
) -> Exponents | Conflict[Condition]:
    """Minimise the sum over the matrices, then c by c in the order of the roles, each goal kept for
    the ones after it."""
    goals = [{f"c_{role}": ONE for role in MATRIX_ROLES}, *({f"c_{role}": ONE} for role in roles)]
    reached: list[Condition] = []
    x: dict[str, Fraction] = {}
    for goal in goals:
        found = minimize(goal, [*conditions, *reached])
        if isinstance(found, Conflict):
            return _simplest_conflict(conditions)
        x = found.x
        reached.append(Condition("(reached)", "", "", "", goal, -found.value, equality=True))
    return {role: x[f"c_{role}"] for role in roles}


def _simplest_conflict(conditions: list[Condition]) -> Conflict[Condition]:
    """Without the conditions that carry changes from layer to layer, if the conflict is there
    without them."""
    for left_out in (("(18)", "(20)"), ("(20)",), ()):
        found = minimize({}, [k for k in conditions if not k.code.startswith(left_out)])
        if isinstance(found, Conflict):
            return found
    raise AssertionError("the conditions do not conflict")


def _reason(role: str, best: Exponents, conditions: list[Condition]) -> tuple[Condition, ...]:
    """Which conditions stop c_role, the other rates being what they are: the priced ones of a
    program of its own."""
    fixed = {f"c_{other}": value for other, value in best.items() if other != role}
    inserted = {_insert(k, fixed): k for k in conditions}
    simple = [
        k for k in inserted if not k.code.startswith("(20)")
    ]  # where (19) alone says it, (14) and (20) need not
    answers = (minimize({f"c_{role}": ONE}, choice) for choice in (simple, list(inserted)))
    because = next(a.because for a in answers if isinstance(a, Optimum) and a.value == best[role])
    return tuple(inserted[k] for k in because)


def _insert(condition: Condition, values: Exponents) -> Condition:
    """The condition with some unknowns replaced by their values."""
    known = {name: weight for name, weight in condition.terms.items() if name in values}
    rest = {name: weight for name, weight in condition.terms.items() if name not in values}
    moved = sum((weight * values[name] for name, weight in known.items()), condition.constant)
    return replace(condition, terms=rest, constant=moved)


def _reject_contradiction(given: list[Condition]) -> None:
    """ConstraintsInput that no learning rates at all could satisfy are a slip of the user, not a
    result."""
    found = minimize({}, given) if given else None
    if isinstance(found, Conflict):
        texts = " and ".join(repr(k.text) for k in found.constraints)
        raise ValueError(f"constraints: {texts} contradict each other; keep one of them")
