"""The largest stable learning rates, exactly: minimise the exponents c subject to (13), (14), (18)-(20).

Every rate is as large as the others allow. Where two rates trade against each other, the sum of exponents decides, then
hidden before embedding before readout before vector. Each answer comes with the chain of conditions that stops it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from orderone.theory.exponents.alignment import GivenAlignment, read_alignment
from orderone.theory.exponents.conditions import Condition, changes, init_conditions, update_conditions
from orderone.theory.exponents.constraints import GivenConstraints, read_constraints
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import MATRIX_ROLES, Exponents, Parameterization
from orderone.theory.linear_program import Conflict, Optimum, minimize

PRIORITY = ("hidden", "embedding", "readout", "vector")


class InfeasibleError(ValueError):
    """No learning rates satisfy the conditions; `conflict` holds a smallest set of them that contradict one another."""

    def __init__(self, message: str, conflict: tuple[Condition, ...]):
        super().__init__(message)
        self.conflict = conflict


@dataclass(frozen=True)
class Solution:
    """c and r at the optimum and, per role, the conditions that keep c from falling; or the conflict."""

    c: Exponents
    r: Exponents
    binding: dict[str, tuple[Condition, ...]]
    conflict: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return not self.conflict

    def __str__(self) -> str:
        if not self:
            return "infeasible; these conditions cannot hold together:\n" + "\n".join(f"  {k}" for k in self.conflict)
        return "\n".join(f"c_{role} = {self.c[role]} because of {self.why(role)}" for role in self.c)

    def why(self, role: str) -> str:
        """The conditions that stop c_role, each named once although several layers share it."""
        return "; ".join(
            dict.fromkeys(f"{k.code} {k.role} ({k.subject})" for k in self.binding[role] if k.code != "(13)")
        )


def max_lr(
    p: Parameterization,
    optimizer: str = "adam",
    alignment: GivenAlignment = "full",
    *,
    constraints: GivenConstraints = (),
    depth: int = 3,
    norm: bool = False,
    tied: bool = False,
) -> Exponents:
    """Learning-rate exponents {embedding, hidden, readout} -> c of the largest stable rates n^{-c}. p.c plays no part.

    `solve` takes the same arguments and also tells the vectors' exponent and the reasons.
    """
    solution = solve(p, optimizer, alignment, constraints=constraints, depth=depth, norm=norm, tied=tied)
    if not solution:
        raise InfeasibleError(f"{p.name}: {solution}\nrelax one of them", solution.conflict)
    return {role: solution.c[role] for role in MATRIX_ROLES}


def solve(
    p: Parameterization,
    optimizer: str = "adam",
    alignment: GivenAlignment = "full",
    *,
    constraints: GivenConstraints = (),
    depth: int = 3,
    norm: bool = False,
    tied: bool = False,
) -> Solution:
    """As `max_lr`, with reasons. An infeasible problem is a result too: a false Solution with its `conflict`."""
    law, align = update_law(optimizer), read_alignment(alignment)
    given = read_constraints(constraints, p.roles)
    rates = [role for role in PRIORITY if role in p.roles]
    _reject_contradiction(given)
    broken = [k for k in init_conditions(p, norm, tied) if k.code == "(tied)" and k.value({}) != 0]
    updates = list(update_conditions(p, law, align, depth, norm, tied))
    best = _lexicographic(rates, [*updates, *given, *broken])
    if isinstance(best, Conflict):
        return Solution({}, {}, {}, best.constraints)
    binding = {role: _reason(role, best, [*updates, *given]) for role in rates}
    return Solution({role: best[role] for role in p.roles}, _only_r(changes(updates, best)), binding)


def _lexicographic(rates: Sequence[str], conditions: list[Condition]) -> Exponents | Conflict[Condition]:
    goals = [{f"c_{role}": Fraction(1) for role in rates}, *({f"c_{role}": Fraction(1)} for role in rates)]
    conditions, x = list(conditions), {}
    for goal in goals:
        found = minimize(goal, conditions)
        if isinstance(found, Conflict):
            return found
        x = found.x
        conditions.append(Condition("(chosen)", "user", "reached", "", goal, -found.value, equality=True))
    return {role: x[f"c_{role}"] for role in rates}


def _reason(role: str, best: Exponents, conditions: list[Condition]) -> tuple[Condition, ...]:
    """Which conditions stop c_role, the other rates being what they are: the priced ones of a program of its own."""
    fixed = {f"c_{other}": value for other, value in best.items() if other != role}
    inserted = {_insert(k, fixed): k for k in conditions}
    simple = [k for k in inserted if k.code != "(20)"]  # where (19) alone says it, (14) and (20) together need not
    answers = (minimize({f"c_{role}": Fraction(1)}, choice) for choice in (simple, list(inserted)))
    because = next(a.because for a in answers if isinstance(a, Optimum) and a.value == best[role])
    return tuple(inserted[k] for k in because)


def _insert(condition: Condition, values: Exponents) -> Condition:
    """The condition with some unknowns replaced by their values."""
    known = {name: weight for name, weight in condition.terms.items() if name in values}
    rest = {name: weight for name, weight in condition.terms.items() if name not in values}
    moved = sum((weight * values[name] for name, weight in known.items()), condition.constant)
    return replace(condition, terms=rest, constant=moved)


def _reject_contradiction(given: list[Condition]) -> None:
    """Constraints that no learning rates at all could satisfy are a slip of the user, not a result."""
    found = minimize({}, given) if given else None
    if isinstance(found, Conflict):
        texts = " and ".join(repr(k.text) for k in found.constraints)
        raise ValueError(f"constraints: {texts} contradict each other; keep one of them")


def _only_r(values: dict[str, Fraction]) -> Exponents:
    return {name: value for name, value in values.items() if name.startswith("r_")}
