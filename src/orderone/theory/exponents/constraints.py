"""Extra constraints in words: "c_readout = 0", "readout c = 0", "c_hidden >= c_readout + 1/2"."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

from orderone.core.errors import one_of
from orderone.core.exact import Exact, exact
from orderone.theory.exponents.conditions import Condition
from orderone.theory.exponents.parameterization import ROLES

GivenConstraints: TypeAlias = str | Iterable[str] | Mapping[str, Exact]

_RELATION = re.compile(r"<=|>=|==|=")
_TERM = re.compile(
    r"""\s*(?P<sign>[+-]?)\s*
    (?:(?P<number>\d+(?:\.\d+)?(?:/\d+)?)\s*\*?\s*)?
    (?:c_(?P<role>[a-z]+)|(?P<spoken>[a-z]+)\s+c)?""",
    re.VERBOSE,
)
CODE = "(given)"


def read_constraints(given: GivenConstraints, roles: Iterable[str] = ROLES) -> list[Condition]:
    """Strings as above, or a mapping role -> c."""
    if isinstance(given, Mapping):
        given = [f"c_{role} = {exact(value, f'constraints[{role}]')}" for role, value in given.items()]
    return [_read(text, tuple(roles)) for text in ([given] if isinstance(given, str) else given)]


def _read(text: str, roles: tuple[str, ...]) -> Condition:
    relation, sides = _RELATION.findall(text), _RELATION.split(text)
    if len(relation) != 1:
        raise ValueError(f"constraint: expected one of =, <=, >= as in 'c_readout = 0'; got {text!r}")
    left, right = (_sum(side, text, roles) for side in sides)
    sign = -1 if relation[0] == "<=" else 1
    total = {name: sign * (left.get(name, Fraction(0)) - right.get(name, Fraction(0))) for name in {**left, **right}}
    constant = total.pop("", Fraction(0))
    if not any(total.values()):
        raise ValueError(f"constraint: expected a learning-rate exponent such as c_readout in it; got {text!r}")
    return Condition(CODE, "user", text.strip(), "asked for", total, constant, equality=relation[0] in ("=", "=="))


def _sum(side: str, text: str, roles: tuple[str, ...]) -> dict[str, Fraction]:
    """Coefficients of a sum; the constant has the name ''."""
    total: dict[str, Fraction] = {}
    rest = side.strip()
    while rest:
        term = _TERM.match(rest)
        role = term and (term["role"] or term["spoken"])
        if not term or not (term["number"] or role) or (total and not term["sign"]):
            raise ValueError(f"constraint: cannot read {rest!r} in {text!r}; write sums such as '2*c_hidden - 1/2'")
        name = f"c_{one_of(role, roles, 'role in the constraint')}" if role else ""
        number = exact(term["number"] or 1, "constraint")
        total[name] = total.get(name, Fraction(0)) + (-number if term["sign"] == "-" else number)
        rest = rest[term.end() :].strip()
    if not total:
        raise ValueError(f"constraint: one side is empty in {text!r}")
    return total
