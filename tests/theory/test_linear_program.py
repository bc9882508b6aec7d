"""The exact solver against two other ones, and its reasons against their definition."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from support.errors import refuses
from sympy.solvers.simplex import lpmin

from orderone.theory.linear_program import Conflict, Optimum, minimize


@dataclass(frozen=True, eq=False)
class Row:
    terms: dict[str, Fraction]
    constant: Fraction
    equality: bool = False


small = st.fractions(min_value=-3, max_value=3, max_denominator=4)
names: tuple[str, ...] = ("x", "y", "z")
rows = st.lists(
    st.builds(
        Row, st.dictionaries(st.sampled_from(names), small, min_size=1), small, st.booleans()
    ),
    max_size=6,
)


def in_a_box(given: list[Row]) -> list[Row]:
    """Add bounds, so that every program has an optimum."""
    sides = ((1, -1), Fraction(5))
    return [*given, *(Row({name: Fraction(sign)}, sides[1]) for name in names for sign in sides[0])]


@settings(max_examples=200, deadline=None)
@given(rows, st.tuples(small, small, small))
def test_agrees_with_highs(given_rows, weights):
    box, cost = in_a_box(given_rows), dict(zip(names, weights, strict=True))
    ours = minimize(cost, box)
    highs = linprog(
        np.array(weights, float),
        A_ub=[[-float(r.terms.get(n, 0)) for n in names] for r in box],
        b_ub=[float(r.constant) for r in box],
        A_eq=[[float(r.terms.get(n, 0)) for n in names] for r in box if r.equality] or None,
        b_eq=[-float(r.constant) for r in box if r.equality] or None,
        bounds=(None, None),
    )
    if isinstance(ours, Conflict):
        assert highs.status == 2  # infeasible
    else:
        assert float(ours.value) == pytest.approx(highs.fun, abs=1e-6)
        assert all(
            _left(row, ours.x) == 0 if row.equality else _left(row, ours.x) >= 0 for row in box
        )


def _left(row: Row, x: dict[str, Fraction]) -> Fraction:
    return sum((weight * x[name] for name, weight in row.terms.items()), row.constant)


def test_agrees_with_sympy_to_the_last_digit():
    x, y, z = sympy.symbols("x y z")
    third = Fraction(1, 3)
    ours = minimize(
        {"x": Fraction(2), "y": third, "z": Fraction(1)},
        [
            Row({"x": Fraction(1), "y": Fraction(1)}, -third),
            Row({"y": Fraction(1), "z": Fraction(3, 7)}, Fraction(-1)),
            Row({"x": Fraction(1), "z": Fraction(-1)}, Fraction(2, 9), equality=True),
            Row({"y": Fraction(-1)}, Fraction(4)),
        ],
    )
    third = sympy.Rational(1, 3)
    given = [
        x + y >= third,
        y + sympy.Rational(3, 7) * z >= 1,
        sympy.Eq(x - z + sympy.Rational(2, 9), 0),
        y <= 4,
    ]
    assert isinstance(ours, Optimum)
    assert str(ours.value) == str(lpmin(2 * x + third * y + z, given)[0])


@settings(max_examples=80, deadline=None)
@given(rows, st.tuples(small, small, small))
def test_reasons_are_sufficient_and_conflicts_are_smallest(given_rows, weights):
    box, cost = in_a_box(given_rows), dict(zip(names, weights, strict=True))
    found = minimize(cost, box)
    if isinstance(found, Conflict):
        assert isinstance(minimize({}, list(found.constraints)), Conflict)
        for left_out in found.constraints:
            rest = [k for k in found.constraints if k is not left_out]
            assert isinstance(minimize({}, rest), Optimum)
    elif any(weights):
        again = minimize(cost, list(found.because))
        assert isinstance(again, Optimum)
        assert again.value == found.value


def test_an_unbounded_program_is_an_error():
    with refuses("invalid-argument", argument="constraints"):
        minimize({"x": Fraction(1)}, [Row({"x": Fraction(-1)}, Fraction(0))])
