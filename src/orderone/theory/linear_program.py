"""Small linear programs, solved exactly in rational numbers, with reasons.

    minimise  k . x   subject to   A x >= beta,   x free                       (primal: what the user asks)
    maximise  beta . y  subject to  A^T y = k,   y >= 0                          (dual: what is solved here)

The dual is in standard form, with one row per unknown and one column per constraint. Its solution is at the same time
the answer to *why*: y_i > 0 exactly on constraints that hold the optimum up, and when the primal is infeasible the dual
is unbounded along an extreme ray, whose support is a set of constraints that contradict one another, none superfluous.
Bland's rule makes it terminate; Fractions make it exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, TypeVar, runtime_checkable


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
    """The smallest `cost . x` that satisfies all `constraints`, or the constraints that cannot hold together."""
    unknowns = sorted({name for row in constraints for name in row.terms} | set(cost))
    columns = [(row, sign) for row in constraints for sign in ((1, -1) if row.equality else (1,))]
    table = _Tableau(
        rows=[
            [sign * row.terms.get(name, Fraction(0)) for row, sign in columns] + [Fraction(cost.get(name, 0))]
            for name in unknowns
        ],
        prices=[-sign * row.constant for row, sign in columns],
    )
    if not table.find_start():
        raise ValueError("the program has no lower bound: no constraint keeps the cost from falling for ever")
    ray = table.improve()
    if ray is not None:
        return Conflict(_distinct(columns[j][0] for j in sorted(ray)))
    x = dict(zip(unknowns, table.multipliers(), strict=True))
    value = sum((Fraction(cost.get(name, 0)) * x[name] for name in unknowns), Fraction(0))
    return Optimum(value, x, _distinct(columns[j][0] for j in table.support()))


def _distinct(items) -> tuple:
    return tuple(dict.fromkeys(items))


class _Tableau:
    """Rows `[constraint columns | artificial columns | right side]`, one basic column for each, and a row of gains:
    what a unit of each column would add to the objective."""

    def __init__(self, rows: list[list[Fraction]], prices: list[Fraction]):
        self.prices, self.columns, size = prices, len(prices), len(rows)
        self.signs = [-1 if row[-1] < 0 else 1 for row in rows]  # a standard-form right side is not negative
        self.rows = [
            [*(sign * entry for entry in row[:-1]), *(Fraction(int(i == j)) for j in range(size)), sign * row[-1]]
            for i, (row, sign) in enumerate(zip(rows, self.signs, strict=True))
        ]
        self.basis = [self.columns + i for i in range(size)]
        self.gains: list[Fraction] = []

    def find_start(self) -> bool:
        """Phase one: drive the artificial columns out of the basis; False if they cannot leave."""
        self._climb([Fraction(0)] * self.columns + [Fraction(-1)] * len(self.rows))
        for i, column in enumerate(self.basis):
            if column >= self.columns:
                if self.rows[i][-1] != 0:
                    return False
                swap = next((j for j in range(self.columns) if self.rows[i][j] != 0), None)
                if swap is not None:  # otherwise the row is void and stays so
                    self._pivot(i, swap)
        return True

    def improve(self) -> list[int] | None:
        """Phase two: climb to the optimum. Returns None there, or the support of a ray that climbs for ever."""
        return self._climb(self.prices + [Fraction(0)] * len(self.rows))

    def multipliers(self) -> list[Fraction]:
        """The primal unknowns: what a unit of each right side is worth."""
        return [-sign * self.gains[self.columns + i] for i, sign in enumerate(self.signs)]

    def support(self) -> list[int]:
        in_use = zip(self.basis, self.rows, strict=True)
        return sorted(column for column, row in in_use if row[-1] > 0 and column < self.columns)

    def _climb(self, prices: list[Fraction]) -> list[int] | None:
        self.gains = [*prices, Fraction(0)]
        for price, row in [(prices[column], row) for column, row in zip(self.basis, self.rows, strict=True)]:
            if price:
                self.gains = [gain - price * entry for gain, entry in zip(self.gains, row, strict=True)]
        while True:
            # Bland: the first improving column, so that it cannot cycle. Artificial columns never come back.
            enter = next((j for j in range(self.columns) if self.gains[j] > 0), None)
            if enter is None:
                return None
            ratios = [(row[-1] / row[enter], self.basis[i], i) for i, row in enumerate(self.rows) if row[enter] > 0]
            if not ratios:
                return [enter, *(b for b, row in zip(self.basis, self.rows, strict=True) if row[enter] < 0)]
            self._pivot(min(ratios)[2], enter)

    def _pivot(self, i: int, j: int) -> None:
        lead = [entry / self.rows[i][j] for entry in self.rows[i]]
        for k, row in enumerate(self.rows):
            if row[j]:
                self.rows[k] = [entry - row[j] * top if top else entry for entry, top in zip(row, lead, strict=True)]
        self.gains = [gain - self.gains[j] * top if top else gain for gain, top in zip(self.gains, lead, strict=True)]
        self.rows[i], self.basis[i] = lead, j
