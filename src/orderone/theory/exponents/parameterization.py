"""abc-parameterizations: three exponents per role, exact.

    h_{l+1} = n^{-a_l} W_l h_l,    Var(W_l) = n^{-2 b_l},    eta_l = C n^{-c_l}          S0 (1),
                                   (2), (11)

n is the width. A role is what a tensor does, seen from its two dimensions as the width grows:

    embedding   n x V    fan-in fixed:  W_0, patch and positional embeddings
    hidden      n x n    both grow:     W_1 ... W_L, attention and MLP matrices
    readout     V x n    fan-out fixed: W_{L+1}
    vector      n        biases and normalization gains: an embedding with the constant input 1

A tensor none of whose dimensions grows (a bias of the readout) has no role: its exponents are all
0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from orderone.core.errors import one_of
from orderone.core.exact import exact
from orderone.core.frozen import FrozenDict
from orderone.core.inputs import ExponentsInput

MATRIX_ROLES = ("embedding", "hidden", "readout")
ROLES = (*MATRIX_ROLES, "vector")

Exponents: TypeAlias = dict[str, Fraction]


@dataclass(frozen=True)
class Parameterization:
    """Exponents a (multiplier), b (initial standard deviation) and c (learning rate) for every
    role.

    `own` keeps the multipliers the rule was written with, so that a shifted rule finds its way back
    (`gauge`). `rates_for` is the optimizer and the alignment that c was derived for, and None if c
    was given.
    """

    name: str
    a: Exponents
    b: Exponents
    c: Exponents
    own: Exponents = field(default_factory=dict, compare=False, repr=False)
    rates_for: tuple[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self):
        for letter in "abc":
            object.__setattr__(
                self, letter, FrozenDict(read_exponents(getattr(self, letter), letter))
            )
        if not (set(self.a) == set(self.b) == set(self.c)):
            roles = "; ".join(
                f"{letter} has {', '.join(getattr(self, letter))}" for letter in "abc"
            )
            raise ValueError(f"{self.name}: a, b and c must name the same roles, but {roles}")
        object.__setattr__(self, "own", FrozenDict(self.own or self.a))

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.a)

    def __str__(self) -> str:
        rows = [
            f"  {role:9}  a = {self.a[role]!s:5} b = {self.b[role]!s:5} c = {self.c[role]}"
            for role in self.roles
        ]
        return "\n".join([self.name, *rows])

    def with_c(self, c: ExponentsInput) -> "Parameterization":
        """The same network with other learning-rate exponents; roles that `c` leaves out keep
        theirs."""
        return replace(self, c={**self.c, **read_exponents(c, "c", partial=True)}, rates_for=None)


if TYPE_CHECKING:
    Rule: TypeAlias = Parameterization
else:
    Rule = Any  # what `read_rule` reads


def read_rule(given: Rule) -> Parameterization:
    if isinstance(given, Parameterization):
        return given
    name = f"'{given}'" if isinstance(given, str) else "'mup'"
    raise ValueError(
        f"rule: expected a Parameterization, got {given!r}; write rules.get({name}) or"
        " rules.custom(...)"
    )


def read_exponents(given: ExponentsInput, letter: str, partial: bool = False) -> Exponents:
    """A mapping role -> number, or a sequence in the order embedding, hidden, readout[, vector], as
    exact exponents."""
    if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)):
        given = list(given)
        if len(given) not in (len(MATRIX_ROLES), len(ROLES)):
            raise ValueError(
                f"{letter}: expected 3 or 4 exponents in the order {', '.join(ROLES)}; got"
                f" {given!r}"
            )
        given = dict(zip(ROLES, given, strict=False))
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{letter}: expected exponents such as {{'embedding': 0, 'hidden': '1/2', 'readout':"
            f" 1}} or (0, '1/2', 1); got {given!r}"
        )
    given = {one_of(role, ROLES, f"role in {letter}"): value for role, value in given.items()}
    missing = [role for role in MATRIX_ROLES if role not in given]
    if missing and not partial:
        raise ValueError(
            f"{letter}: no exponent for {', '.join(missing)}; give one for each of"
            f" {', '.join(MATRIX_ROLES)}"
        )
    return {role: exact(given[role], f"{letter}[{role}]") for role in ROLES if role in given}
