"""Small linear programs, solved exactly in rational numbers, with reasons.

    minimise  k . x   subject to   A x >= beta,   x free                       (primal: what the
                                                  user asks)
    maximise  beta . y  subject to  A^T y = k,   y >= 0                          (dual: what is
                                                 solved here)

The dual is in standard form, with one row per unknown and one column per constraint. Its solution
is at the same time the answer to *why*: y_i > 0 exactly on constraints that hold the optimum up,
and when the primal is infeasible the dual is unbounded along an extreme ray, whose support is a set
of constraints that contradict one another, none superfluous. Bland's rule makes it terminate;
Fractions make it exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable


@runtime_checkable
class Inequality(Protocol):
    """sum(terms[v] * v) + constant >= 0, or == 0."""

    @property
    def terms(self) -> Mapping[str, Fraction]: ...
    @property
    def constant(self) -> Fraction: ...
    @property
    def equality(self) -> bool: ...


C = TypeVar("C", bound=Inequality)


@dataclass(frozen=True)
class Optimum(Generic[C]):
    value: Fraction
    x: dict[str, Fraction]
    because: tuple[C, ...]  # constraints with a positive price


@dataclass(frozen=True)
class Conflict(Generic[C]):
    constraints: tuple[C, ...]  # no proper subset of these contradicts itself


def minimize(cost: Mapping[str, Fraction], constraints: Sequence[C]) -> Optimum[C] | Conflict[C]:
    """The smallest `cost . x` that satisfies all `constraints`, or the constraints that cannot hold
    together."""
    unknowns = sorted({name for row in constraints for name in row.terms} | set(cost))
    columns = [(row, sign) for row in constraints for sign in ((1, -1) if row.equality else (1,))]
    rows: dict[str, _Row] = {
        name: {RIGHT: Fraction(cost[name])} if cost.get(name) else {} for name in unknowns
    }
    for j, (row, sign) in enumerate(columns):
        for name, weight in row.terms.items():
            if weight:
                rows[name][j] = sign * weight
    table = _Tableau(list(rows.values()), prices=[-sign * row.constant for row, sign in columns])
    if not table.find_start():
        raise ValueError(
            "the program has no lower bound: no constraint keeps the cost from falling for ever"
        )
    ray = table.improve()
    if ray is not None:
        return Conflict(_distinct(columns[j][0] for j in sorted(ray)))
    x = dict(zip(unknowns, table.multipliers(), strict=True))
    value = sum((Fraction(cost.get(name, 0)) * x[name] for name in unknowns), Fraction(0))
    return Optimum(value, x, _distinct(columns[j][0] for j in table.support()))


def _distinct(items) -> tuple:
    return tuple(dict.fromkeys(items))


RIGHT = -1  # the column of the right sides
_Row: TypeAlias = dict[int, Fraction]


class _Tableau:
    """Sparse rows over constraint columns, artificial columns and the right side (RIGHT), one basic
    column for each, and a row of gains: what a unit of each column would add to the objective."""

    def __init__(self, rows: list[_Row], prices: list[Fraction]):
        self.prices = prices
        self.columns = len(prices)
        self.signs = [
            -1 if row.get(RIGHT, 0) < 0 else 1 for row in rows
        ]  # a standard-form right side is not negative
        self.rows = [
            {column: sign * entry for column, entry in row.items()}
            | {self.columns + i: Fraction(1)}
            for i, (row, sign) in enumerate(zip(rows, self.signs, strict=True))
        ]
        self.basis = [self.columns + i for i in range(len(rows))]
        self.gains: _Row = {}

    def find_start(self) -> bool:
        """Phase one: drive the artificial columns out of the basis; False if they cannot leave."""
        self._climb({self.columns + i: Fraction(-1) for i in range(len(self.rows))})
        for i, column in enumerate(self.basis):
            if column >= self.columns:
                if self.rows[i].get(RIGHT, 0) != 0:
                    return False
                swap = next((j for j in self.rows[i] if 0 <= j < self.columns), None)
                if swap is not None:  # otherwise the row is void and stays so
                    self._pivot(i, swap)
        return True

    def improve(self) -> list[int] | None:
        """Phase two: climb to the optimum. Returns None there, or the support of a ray that climbs
        for ever."""
        return self._climb(dict(enumerate(self.prices)))

    def multipliers(self) -> list[Fraction]:
        """The primal unknowns: what a unit of each right side is worth."""
        return [
            -sign * self.gains.get(self.columns + i, Fraction(0))
            for i, sign in enumerate(self.signs)
        ]

    def support(self) -> list[int]:
        in_use = zip(self.basis, self.rows, strict=True)
        return sorted(
            column for column, row in in_use if row.get(RIGHT, 0) > 0 and column < self.columns
        )

    def _climb(self, prices: _Row) -> list[int] | None:
        self.gains = {column: price for column, price in prices.items() if price}
        for column, row in zip(self.basis, self.rows, strict=True):
            if prices.get(column):
                _subtract(self.gains, prices[column], row)
        while True:
            # Bland: the first improving column, so that it cannot cycle. Artificial columns never
            # come back.
            enter = min(
                (j for j, gain in self.gains.items() if gain > 0 and 0 <= j < self.columns),
                default=None,
            )
            if enter is None:
                return None
            column = [(i, row[enter]) for i, row in enumerate(self.rows) if enter in row]
            ratios = [
                (self.rows[i].get(RIGHT, Fraction(0)) / x, self.basis[i], i)
                for i, x in column
                if x > 0
            ]
            if not ratios:
                return [enter, *(self.basis[i] for i, x in column if x < 0)]
            self._pivot(min(ratios)[2], enter)

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
    """row - factor * lead, in place; zeros are not kept."""
    for column, entry in lead.items():
        value = row.get(column, 0) - factor * entry
        if value:
            row[column] = value
        else:
            row.pop(column, None)
