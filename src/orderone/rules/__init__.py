"""Parameterizations as data: `get` one by name, write a `custom` one, derive one `from_alignment`,
list the `names`."""

from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.inputs import Name
from orderone.rules.declare import Declared, custom
from orderone.rules.measured import from_alignment
from orderone.rules.mf import MF
from orderone.rules.mup import MUP
from orderone.rules.ntk import NTK
from orderone.rules.s_family import HYBRID, MAXIMAL_UPDATE, NEURAL_TANGENT, STANDARD, between
from orderone.rules.sp import SP
from orderone.theory.exponents import Parameterization
from orderone.theory.exponents.alignment import GivenAlignment
from orderone.theory.scaling import STRATEGIES, is_strategy, strategy_power

_DECLARED = {
    rule.name: rule for rule in (SP, NTK, MUP, MF, STANDARD, NEURAL_TANGENT, HYBRID, MAXIMAL_UPDATE)
}

__all__ = ["assumed_alignment", "custom", "from_alignment", "get", "names"]


def names() -> tuple[str, ...]:
    return tuple(_DECLARED)


def get(
    name: Name, optimizer: Name = "adam", alignment: GivenAlignment | None = None
) -> Parameterization:
    """The rule `name`, with c derived for this optimizer and alignment (by default, the one its
    authors assume).

    "s=1/4" and the like are the rules between neural-tangent (0) and maximal-update (1).
    """
    return _declared(name).derive(optimizer, alignment)


def assumed_alignment(name: Name) -> str:
    """The alignment under which the authors of a rule chose its learning rates."""
    return _declared(name).alignment


def _declared(name: Name) -> Declared:
    if isinstance(name, str) and is_strategy(name) and name not in STRATEGIES:
        return between(name, strategy_power(name) or Fraction(0))
    return _DECLARED[one_of(name, _DECLARED, "rule")]
