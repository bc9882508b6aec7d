"""Ratios measured in one run: the exact solver compared with sympy's, and the import time compared
with a bare interpreter."""

import subprocess
import sys
import time
from fractions import Fraction

import pytest
import sympy
from sympy.solvers.simplex import lpmin

from orderone import rules
from orderone.theory.exponents.solver import Network, update_conditions
from orderone.theory.exponents.updates import OPTIMIZERS, PRESETS
from orderone.theory.linear_program import Optimum, minimize

CONDITIONS = list(
    update_conditions(
        Network(rules.get("sp"), OPTIMIZERS["adam"], PRESETS["worst"], depth=3), together=True
    )
)
COST = {f"c_{role}": Fraction(1) for role in ("embedding", "hidden", "readout", "vector")}


def ours() -> Fraction:
    found = minimize(COST, CONDITIONS)
    assert isinstance(found, Optimum)
    return found.value


def sympys() -> Fraction:
    symbols = {name: sympy.Symbol(name) for k in CONDITIONS for name in k.terms}
    left = [
        sum(sympy.Rational(w) * symbols[n] for n, w in k.terms.items()) + sympy.Rational(k.constant)
        for k in CONDITIONS
    ]
    return Fraction(str(lpmin(sum(symbols[name] for name in COST), [e >= 0 for e in left])[0]))


@pytest.mark.benchmark(group="the linear program behind max_lr, depth 3")
@pytest.mark.parametrize("solver", [ours, sympys])
def test_linear_program(benchmark, solver):
    assert benchmark.pedantic(solver, rounds=3, iterations=1) == Fraction(7, 2)


@pytest.mark.benchmark(group="start")
@pytest.mark.parametrize(
    "arguments",
    [("-c", "pass"), ("-c", "import orderone"), ("-m", "orderone", "--help")],
    ids=["python", "import", "help"],
)
def test_start(benchmark, arguments):
    benchmark.pedantic(
        lambda: subprocess.run([sys.executable, *arguments], capture_output=True, check=True),
        rounds=5,
    )


def test_a_rule_takes_milliseconds(benchmark):
    benchmark(rules.get, "mup")


def test_start_is_light():
    """The import takes less than half a second more than a bare interpreter, the help less than one
    second."""

    def seconds(*arguments: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            times.append(time.perf_counter() - start)
        return sorted(times)[2]

    bare = seconds("-c", "pass")
    assert seconds("-c", "import orderone") - bare < 0.5
    assert seconds("-m", "orderone", "--help") < 1.0
