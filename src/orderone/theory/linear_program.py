"""Small linear programs, solved exactly in rational numbers, with reasons.

    minimise  k . x     subject to   A x >= beta,   x free      (primal: the user's problem)
    maximise  beta . y  subject to   A^T y = k,     y >= 0      (dual: solved here)

The dual is in standard form, with one row per unknown and one column per constraint. Its solution
also gives the reasons. The constraints with y_i > 0 are those that determine the optimum. If the
primal is infeasible, the dual is unbounded along an extreme ray, and the support of this ray is a
minimal set of constraints that contradict one another. Bland's rule makes the method terminate;
Fractions make it exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from orderone.core.errors import InputError


@runtime_checkable
class Inequality(Protocol):
    """Inequality sum(terms[v] * v) + constant >= 0, or equality == 0."""

    @property
    def terms(self) -> Mapping[str, Fraction]: ...
    @property
    def constant(self) -> Fraction: ...
    @property
    def equality(self) -> bool: ...


C = TypeVar("C", bound=Inequality)


@dataclass(frozen=True)
class Optimum(Generic[C]):
    """Smallest cost, a point that has it, and the constraints that determine it."""

    value: Fraction
    x: dict[str, Fraction]
    because: tuple[C, ...]  # constraints with a positive dual price


@dataclass(frozen=True)
class Conflict(Generic[C]):
    """Constraints that cannot hold together."""

    constraints: tuple[C, ...]  # no proper subset of these contradicts itself


def minimize(cost: Mapping[str, Fraction], constraints: Sequence[C]) -> Optimum[C] | Conflict[C]:
    """Return the smallest `cost . x` under `constraints`, or those that contradict each other."""
    columns: list[tuple[C, int]] = []
    unknowns = set(cost)
    for constraint in constraints:
        unknowns.update(constraint.terms)
        columns.append((constraint, 1))
        if constraint.equality:  # = is >= and <=
            columns.append((constraint, -1))

    rows: dict[str, _Row] = {}
    for name in sorted(unknowns):
        rows[name] = {}
        if cost.get(name):
            rows[name][RIGHT] = Fraction(cost[name])
    for j, (constraint, sign) in enumerate(columns):
        for name, weight in constraint.terms.items():
            if weight:
                rows[name][j] = sign * weight

    prices = [-sign * constraint.constant for constraint, sign in columns]
    table = _Tableau(list(rows.values()), prices)
    if not table.find_start():
        raise InputError(
            "constraints: expected a problem with a lower bound, but the constraints allow any"
            " cost, however small; add one that bounds it from below",
            argument="constraints",
        )
    ray = table.improve()
    if ray is not None:
        return Conflict(_distinct_constraints(columns, sorted(ray)))
    x = dict(zip(rows, table.multipliers(), strict=True))
    value = sum((Fraction(cost.get(name, 0)) * x[name] for name in x), Fraction(0))
    return Optimum(value, x, _distinct_constraints(columns, table.support()))


def _distinct_constraints(columns: list[tuple[C, int]], chosen: list[int]) -> tuple[C, ...]:
    return tuple(dict.fromkeys(columns[j][0] for j in chosen))


RIGHT = -1  # column of the right-hand sides
_Row: TypeAlias = dict[int, Fraction]


class _Tableau:
    """Simplex tableau: sparse rows over constraint columns, artificial columns and RIGHT.

    Each row has one basic column. `gains` is the row of reduced costs: the amount that one unit of
    each column would add to the objective.
    """

    def __init__(self, rows: list[_Row], prices: list[Fraction]):
        self.prices = prices
        self.columns = len(prices)
        self.signs: list[int] = []
        self.rows: list[_Row] = []
        self.basis: list[int] = []
        self.gains: _Row = {}
        for i, row in enumerate(rows):
            sign = -1 if row.get(RIGHT, 0) < 0 else 1  # make the right-hand side nonnegative
            artificial = self.columns + i
            signed = {column: sign * entry for column, entry in row.items()}
            signed[artificial] = Fraction(1)
            self.signs.append(sign)
            self.rows.append(signed)
            self.basis.append(artificial)

    def find_start(self) -> bool:
        """Run phase one: remove the artificial columns from the basis; False if impossible."""
        self._optimize({self.columns + i: Fraction(-1) for i in range(len(self.rows))})
        for i, column in enumerate(self.basis):
            if column < self.columns:
                continue
            if self.rows[i].get(RIGHT, 0) != 0:
                return False
            swap = next((j for j in self.rows[i] if 0 <= j < self.columns), None)
            if swap is not None:  # otherwise all its other entries are 0
                self._pivot(i, swap)
        return True

    def improve(self) -> list[int] | None:
        """Run phase two; return None at the optimum, or the support of an unbounded ray."""
        return self._optimize(dict(enumerate(self.prices)))

    def multipliers(self) -> list[Fraction]:
        """Return the primal unknowns: the gain of the objective per unit of each right side."""
        result: list[Fraction] = []
        for i, sign in enumerate(self.signs):
            result.append(-sign * self.gains.get(self.columns + i, Fraction(0)))
        return result

    def support(self) -> list[int]:
        """Return the constraint columns with a positive dual price."""
        result: list[int] = []
        for column, row in zip(self.basis, self.rows, strict=True):
            if column < self.columns and row.get(RIGHT, 0) > 0:
                result.append(column)
        return sorted(result)

    def _optimize(self, prices: _Row) -> list[int] | None:
        self.gains = {column: price for column, price in prices.items() if price}
        for column, row in zip(self.basis, self.rows, strict=True):
            if prices.get(column):
                _subtract(self.gains, prices[column], row)
        while True:
            enter = self._improving_column()
            if enter is None:
                return None
            ratios: list[tuple[Fraction, int, int]] = []
            ray = [enter]
            for i, row in enumerate(self.rows):
                entry = row.get(enter, 0)
                if entry > 0:
                    ratios.append((row.get(RIGHT, Fraction(0)) / entry, self.basis[i], i))
                elif entry < 0:
                    ray.append(self.basis[i])
            if not ratios:
                return ray
            _, _, leave = min(ratios)
            self._pivot(leave, enter)

    def _improving_column(self) -> int | None:
        """Return the first improving column that is not artificial: Bland's rule, no cycles."""
        improving = (j for j, gain in self.gains.items() if gain > 0 and 0 <= j < self.columns)
        return min(improving, default=None)

    def _pivot(self, i: int, j: int) -> None:
        scale = self.rows[i][j]
        lead = {column: entry / scale for column, entry in self.rows[i].items()}
        for k, row in enumerate(self.rows):
            if k != i and j in row:
                _subtract(row, row[j], lead)
        if j in self.gains:
            _subtract(self.gains, self.gains[j], lead)
        self.rows[i] = lead
        self.basis[i] = j


def _subtract(row: _Row, factor: Fraction, lead: _Row) -> None:
    """Subtract factor * lead in place and drop zeros."""
    for column, entry in lead.items():
        value = row.get(column, 0) - factor * entry
        if value:
            row[column] = value
        else:
            row.pop(column, None)
