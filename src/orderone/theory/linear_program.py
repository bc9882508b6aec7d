"""Small linear programs, solved exactly in rational numbers, with reasons.

    minimise  k . x   subject to   A x >= beta,   x free                       (primal: what the user asks)
    maximise  beta . y  subject to  A^T y = k,   y >= 0                          (dual: what is solved here)

The dual is in standard form, with one row per unknown and one column per constraint. Its solution is at the same time
the answer to *why*: y_i > 0 exactly on constraints that hold the optimum up, and when the primal is infeasible the dual
is unbounded along an extreme ray, whose support is a smallest set of constraints that contradict one another (Farkas).
Bland's rule makes it terminate; Fractions make it exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, Protocol, TypeVar


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
        return Conflict(_distinct(columns[j][0] for j in ray))
    x = dict(zip(unknowns, table.multipliers(), strict=True))
    value = sum((Fraction(cost.get(name, 0)) * x[name] for name in unknowns), Fraction(0))
    return Optimum(value, x, _distinct(columns[j][0] for j in table.support()))


def _distinct(items) -> tuple:
    return tuple(dict.fromkeys(items))


@dataclass
class _Tableau:
    """Rows `[constraint columns | artificial columns | right side]`, a basis column for each row."""

    rows: list[list[Fraction]]
    prices: list[Fraction]
    basis: list[int] = field(default_factory=list)

    def __post_init__(self):
        self.columns, size = len(self.prices), len(self.rows)
        self.flipped = [row[-1] < 0 for row in self.rows]  # a standard-form right side is not negative
        for i, row in enumerate(self.rows):
            sign = -1 if self.flipped[i] else 1
            unit = [Fraction(int(i == j)) for j in range(size)]
            self.rows[i] = [sign * entry for entry in row[:-1]] + unit + [sign * row[-1]]
        self.basis = [self.columns + i for i in range(size)]

    def find_start(self) -> bool:
        """Phase one: drive the artificial columns out of the basis; False if they cannot leave."""
        size = len(self.rows)
        self._ascend([Fraction(0)] * self.columns + [Fraction(-1)] * size)
        if any(row[-1] != 0 for row, column in zip(self.rows, self.basis, strict=True) if column >= self.columns):
            return False
        for i, column in enumerate(self.basis):
            if column >= self.columns:  # at zero: swap it for any real column, or the row is void
                swap = next((j for j in range(self.columns) if self.rows[i][j] != 0), None)
                if swap is not None:
                    self._pivot(i, swap)
        return True

    def improve(self) -> list[int] | None:
        """Phase two: climb to the optimum. Returns None there, or the support of a ray that climbs for ever."""
        return self._ascend(self._full_prices())

    def multipliers(self) -> list[Fraction]:
        """The primal unknowns: the price of each row."""
        prices = self._full_prices()
        signs = [-1 if flipped else 1 for flipped in self.flipped]
        return [sign * self._worth(prices, self.columns + i) for i, sign in enumerate(signs)]

    def support(self) -> list[int]:
        in_use = zip(self.basis, self.rows, strict=True)
        return sorted(column for column, row in in_use if row[-1] > 0 and column < self.columns)

    def _full_prices(self) -> list[Fraction]:
        return self.prices + [Fraction(0)] * len(self.rows)

    def _worth(self, prices: list[Fraction], column: int) -> Fraction:
        return sum((prices[b] * row[column] for b, row in zip(self.basis, self.rows, strict=True)), Fraction(0))

    def _ascend(self, prices: list[Fraction]) -> list[int] | None:
        while True:
            # Bland: the first improving column. Artificial columns never come back.
            enter = next((j for j in range(self.columns) if prices[j] > self._worth(prices, j)), None)
            if enter is None:
                return None
            ratios = [(row[-1] / row[enter], self.basis[i], i) for i, row in enumerate(self.rows) if row[enter] > 0]
            if not ratios:
                return [enter, *(b for b, row in zip(self.basis, self.rows, strict=True) if row[enter] < 0)]
            self._pivot(min(ratios)[2], enter)

    def _pivot(self, i: int, j: int) -> None:
        scale = self.rows[i][j]
        self.rows[i] = [entry / scale for entry in self.rows[i]]
        for k, row in enumerate(self.rows):
            if k != i and row[j] != 0:
                factor = row[j]
                self.rows[k] = [entry - factor * lead for entry, lead in zip(row, self.rows[i], strict=True)]
        self.basis[i] = j
