"""Roles, exponents and coordinate checks of hand-written architectures of many kinds."""

import math
from fractions import Fraction

import pytest
from support.architectures import ARCHITECTURES

from orderone.core.errors import code_of

BASE, WIDTH = 32, 128
# powers of 1/n in initial size and learning rate of Adam
ADAM = {
    "embedding": (Fraction(0), Fraction(0)),
    "vector": (Fraction(0), Fraction(0)),
    "fixed": (Fraction(0), Fraction(0)),
    "hidden": (Fraction(1, 2), Fraction(1)),
    "readout": (Fraction(1), Fraction(1)),
}
FAST = ("growing list of heads", "vit with registers", "fno", "lora")


def power(factor: float) -> float:
    return -math.log(factor) / math.log(WIDTH / BASE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_roles_and_exponents_are_those_derived_by_hand(name):
    architecture = ARCHITECTURES[name]
    plan = architecture.plan(WIDTH, BASE)
    roles = {row.name: str(row.role) for row in plan.rows}
    assert roles == {row.name: architecture.role(row.name) for row in plan.rows}
    for row in plan.rows:
        std, lr = ADAM[architecture.role(row.name)]
        assert power(row.factors.std) == pytest.approx(float(std)), row.name
        assert power(row.factors.lr) == pytest.approx(float(lr)), row.name
    assert not plan.undone


def passes(name: str, optimizer: str) -> None:
    check = ARCHITECTURES[name].check(optimizer, seeds=2)
    assert check.passed, check


@pytest.mark.parametrize("name", FAST)
def test_a_planned_network_passes_the_coordinate_check(name):
    passes(name, "adam")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "muon"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_planned_network_passes_the_coordinate_check(name, optimizer):
    if (name, optimizer) == ("two towers", "sgd"):
        # A norm divides the outputs of readouts, which start like n^-1/2: changes do grow.
        check = ARCHITECTURES[name].check(optimizer, seeds=2)
        assert [code_of(cause) for cause in check.causes] == ["normalized-readout"]
    else:
        passes(name, optimizer)
