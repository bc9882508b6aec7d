"""Extra constraints in words: "c_readout = 0", "readout c = 0", "c_hidden >= c_readout + 1/2"."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from orderone.core.errors import one_of
from orderone.core.exact import ONE, ZERO, exact
from orderone.core.inputs import ConstraintsInput
from orderone.theory.exponents.conditions import Condition
from orderone.theory.exponents.parameterization import ROLES

_RELATION = re.compile(r"<=|>=|==|=|<|>")
_TERM = re.compile(
    r"""\s*(?P<sign>[+-]?)\s*
    (?:(?P<number>\d+(?:\.\d+)?(?:/\d+)?)\s*\*?\s*)?
    (?:c_(?P<role>[a-z]+)|(?P<spoken>[a-z]+)\s+c\b)?""",
    re.VERBOSE,
)
EXAMPLE = "write it as 'c_readout = 0' or 'c_hidden >= c_readout + 1/2'"


def read_constraints(given: ConstraintsInput, roles: Iterable[str] = ROLES) -> list[Condition]:
    """Strings as above, or a mapping role -> c, or a list of both."""
    items = (given,) if isinstance(given, (str, Mapping)) else given
    if not isinstance(items, Iterable):
        raise ValueError(
            f"constraints: expected strings or a mapping from role to c, got {given!r}; {EXAMPLE}"
        )
    return [_read(text, tuple(roles)) for item in items for text in _texts(item)]


def _texts(item: object) -> list[str]:
    if isinstance(item, str):
        return [item]
    if isinstance(item, Mapping):
        return [
            f"c_{str(role).removeprefix('c_')} = {exact(value, f'constraints[{role}]')}"
            for role, value in item.items()
        ]
    raise ValueError(f"constraint: expected a string or a mapping, got {item!r}; {EXAMPLE}")


def _read(text: str, roles: tuple[str, ...]) -> Condition:
    relations = _RELATION.findall(text)
    sides = _RELATION.split(text)
    if len(relations) != 1 or relations[0] in "<>":
        raise ValueError(f"constraint: expected exactly one of =, <=, >=; got {text!r}; {EXAMPLE}")
    left, right = (_sum(side, text, roles) for side in sides)
    sign = -1 if relations[0] == "<=" else 1
    total = {
        name: sign * (left.get(name, ZERO) - right.get(name, ZERO)) for name in {**left, **right}
    }
    constant = total.pop("", ZERO)
    if not any(total.values()):
        raise ValueError(
            f"constraint: expected a learning-rate exponent such as c_readout in it; got {text!r}"
        )
    return Condition(
        "(given)",
        "user",
        text.strip(),
        "asked for",
        total,
        constant,
        equality=relations[0] in ("=", "=="),
    )


def _sum(side: str, text: str, roles: tuple[str, ...]) -> dict[str, Fraction]:
    """Coefficients of a sum; the constant has the name ''."""
    total: dict[str, Fraction] = {}
    rest = side.strip()
    while rest:
        term = _TERM.match(rest)
        role = term and (term["role"] or term["spoken"])
        if not term or not (term["number"] or role) or (total and not term["sign"]):
            raise ValueError(f"constraint: cannot read {rest!r} in {text!r}; {EXAMPLE}")
        name = f"c_{one_of(role, roles, 'role in the constraint')}" if role else ""
        number = exact(term["number"], "constraint") if term["number"] else ONE
        total[name] = total.get(name, ZERO) + (-number if term["sign"] == "-" else number)
        rest = rest[term.end() :].strip()
    if not total:
        raise ValueError(f"constraint: one side is empty in {text!r}; {EXAMPLE}")
    return total
