"""A rule declares multipliers a and initial sizes b. Its learning-rate exponents c are never written down: they are the
solver's largest stable ones, for the optimizer and the alignment at hand."""

from dataclasses import dataclass
from fractions import Fraction

from orderone.theory.exponents import Parameterization, solve
from orderone.theory.exponents.alignment import GivenAlignment
from orderone.theory.exponents.parameterization import Exponents, GivenExponents, read_exponents


@dataclass(frozen=True)
class Declared:
    """`alignment` is the assumption under which the rule's authors chose its rates."""

    name: str
    a: GivenExponents
    b: GivenExponents
    alignment: str = "full"

    def derive(self, optimizer: str, alignment: GivenAlignment | None) -> Parameterization:
        return derive(self.name, self.a, self.b, optimizer, self.alignment if alignment is None else alignment)


def derive(
    name: str, a: GivenExponents, b: GivenExponents, optimizer: str, alignment: GivenAlignment
) -> Parameterization:
    """The parameterization (a, b) with the largest stable c."""
    start = Parameterization(name, a := read_exponents(a, "a"), read_exponents(b, "b"), c=dict.fromkeys(a, Fraction(0)))
    return start.with_c(solve(start, optimizer, alignment).c)


def custom(
    name: str,
    a: GivenExponents,
    b: GivenExponents,
    c: GivenExponents | None = None,
    *,
    optimizer: str = "adam",
    alignment: GivenAlignment = "full",
) -> Parameterization:
    """Your own rule: exponents per role, as {"embedding": 0, "hidden": "1/2", "readout": 1} or in that order.

    Without `c`, the largest stable learning rates for `optimizer` and `alignment`. `vector` (biases, gains) may be left
    out; it then has a = b = 0 and the largest stable rate.
    """
    given_a, given_b = (_with_vector(given, letter) for given, letter in ((a, "a"), (b, "b")))
    derived = derive(name, given_a, given_b, optimizer, alignment)
    return derived if c is None else derived.with_c(read_exponents(c, "c"))


def _with_vector(given: GivenExponents, letter: str) -> Exponents:
    return {"vector": Fraction(0)} | read_exponents(given, letter)
