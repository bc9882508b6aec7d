"""A rule declares multipliers a and initial sizes b. Its learning-rate exponents c are never written down: they are the
solver's largest stable ones, for the optimizer and the alignment at hand."""

from dataclasses import dataclass
from fractions import Fraction

from orderone.theory.exponents import Parameterization, solve
from orderone.theory.exponents.alignment import GivenAlignment
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import GivenExponents, read_exponents
from orderone.theory.exponents.sizes import update_exponents


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
    out; it then has a = b = 0 and, with `optimizer`, updates of order one.
    """
    a, b = ({"vector": Fraction(0)} | read_exponents(given, letter) for given, letter in ((a, "a"), (b, "b")))
    if c is None:
        return derive(name, a, b, optimizer, alignment)
    given = read_exponents(c, "c")
    start = Parameterization(name, a, b, {"vector": Fraction(0)} | given)
    if "vector" in given:
        return start
    return start.with_c({"vector": -a["vector"] - update_exponents(start, update_law(optimizer))["vector"]})
