"""A rule declares multipliers a and initial sizes b. Its learning-rate exponents c are not written
down: they are the solver's largest stable ones, for the optimizer and the alignment at hand. (One
rule has none: `standard`, which is defined by using one rate for everything.)"""

from dataclasses import dataclass, replace

from orderone.core.exact import ZERO
from orderone.core.inputs import ExponentsInput, Name
from orderone.theory.exponents import Parameterization, solve
from orderone.theory.exponents.alignment import GivenAlignment
from orderone.theory.exponents.optimizers import update_law
from orderone.theory.exponents.parameterization import read_exponents


@dataclass(frozen=True)
class Declared:
    """`alignment` is the assumption under which the rule's authors chose its rates."""

    name: str
    a: ExponentsInput
    b: ExponentsInput
    alignment: str = "full"
    c: ExponentsInput | None = None

    def derive(self, optimizer: str, alignment: GivenAlignment | None) -> Parameterization:
        if self.c is not None:
            update_law(optimizer)  # a misspelt optimizer is an error here too
            a, b, c = (
                read_exponents(x, letter)
                for x, letter in zip((self.a, self.b, self.c), "abc", strict=True)
            )
            return Parameterization(self.name, a, b, c)
        return derive(
            self.name, self.a, self.b, optimizer, self.alignment if alignment is None else alignment
        )


def derive(
    name: str, a: ExponentsInput, b: ExponentsInput, optimizer: str, alignment: GivenAlignment
) -> Parameterization:
    """The parameterization (a, b) with the largest stable c."""
    start = Parameterization(
        name, a := read_exponents(a, "a"), read_exponents(b, "b"), c=dict.fromkeys(a, ZERO)
    )
    return replace(start, c=solve(start, optimizer, alignment).c, rates_for=(optimizer, alignment))


def custom(
    name: str,
    a: ExponentsInput,
    b: ExponentsInput,
    c: ExponentsInput | None = None,
    *,
    optimizer: Name = "adam",
    alignment: GivenAlignment = "full",
) -> Parameterization:
    """Your own rule: exponents per role, as {"embedding": 0, "hidden": "1/2", "readout": 1} or in
    that order.

    Without `c`, the largest stable learning rates for `optimizer` and `alignment`, and `vector`
    (biases, gains) has a = b = 0 unless you say otherwise. With `c`, the rule is about the roles
    that c names, and no others.
    """
    exponents_a = read_exponents(a, "a")
    exponents_b = read_exponents(b, "b")
    if c is None:
        vector = {"vector": ZERO}
        return derive(name, vector | exponents_a, vector | exponents_b, optimizer, alignment)
    exponents_c = read_exponents(c, "c")
    only_a, only_b = (
        {role: given.get(role, ZERO) for role in exponents_c}
        for given in (exponents_a, exponents_b)
    )
    return Parameterization(name, only_a, only_b, exponents_c)
