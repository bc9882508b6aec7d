"""Constraints of the user as text: "c_readout = 0", "readout c = 0",
"c_hidden >= c_readout + 1/2"."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from orderone.core.errors import InputError, one_of
from orderone.core.exact import ONE, ZERO, exact
from orderone.core.inputs import ConstraintsInput
from orderone.core.roles import ROLES
from orderone.theory.linear_program import Conflict, minimize

_RELATION = re.compile(r"<=|>=|==|=|<|>")
_TERM = re.compile(
    r"""\s*(?P<sign>[+-]?)\s*
    (?:(?P<number>\d+(?:\.\d+)?(?:/\d+)?)\s*\*?\s*)?
    (?:c_(?P<role>[a-z]+)|(?P<role_first>[a-z]+)\s+c\b)?""",
    re.VERBOSE,
)
EXAMPLE = "write it as 'c_readout = 0' or 'c_hidden >= c_readout + 1/2'"


@dataclass(frozen=True, eq=False)
class Constraint:
    """Inequality sum(terms[v] * v) + constant >= 0, or equality == 0."""

    text: str
    terms: Mapping[str, Fraction]
    constant: Fraction
    equality: bool


def read_constraints(
    constraints: ConstraintsInput, roles: Iterable[str] = ROLES
) -> list[Constraint]:
    """Return the constraints in a string, a mapping role -> c, or a list of both.

    Raise an InputError if they contradict each other.
    """
    if isinstance(constraints, (str, Mapping)):
        items = (constraints,)
    else:
        items = constraints
    if not isinstance(items, Iterable):
        raise InputError(
            "constraints: expected strings or a mapping from role to c, got"
            f" {constraints!r}; {EXAMPLE}",
            argument="constraints",
        )
    known_roles = tuple(roles)
    result: list[Constraint] = []
    for item in items:
        for text in _texts(item):
            result.append(_read(text, known_roles))
    if result:
        outcome = minimize({}, result)
        if isinstance(outcome, Conflict):
            texts = " and ".join(repr(constraint.text) for constraint in outcome.constraints)
            raise InputError(
                f"constraints: {texts} contradict each other; remove one of them",
                argument="constraints",
            )
    return result


def _texts(item: object) -> list[str]:
    if isinstance(item, str):
        return [item]
    if not isinstance(item, Mapping):
        raise InputError(
            f"constraint: expected a string or a mapping, got {item!r}; {EXAMPLE}",
            argument="constraint",
        )
    texts: list[str] = []
    for role, value in item.items():
        exponent = exact(value, f"constraints[{role}]")
        texts.append(f"c_{str(role).removeprefix('c_')} = {exponent}")
    return texts


def _read(text: str, roles: tuple[str, ...]) -> Constraint:
    relations = _RELATION.findall(text)
    sides = _RELATION.split(text)
    if len(relations) != 1 or relations[0] in "<>":
        raise InputError(
            f"constraint: expected exactly one of =, <=, >=; got {text!r}; {EXAMPLE}",
            argument="constraint",
        )
    left = _sum(sides[0], text, roles)
    right = _sum(sides[1], text, roles)
    sign = -1 if relations[0] == "<=" else 1
    terms: dict[str, Fraction] = {}
    for name in {**left, **right}:
        terms[name] = sign * (left.get(name, ZERO) - right.get(name, ZERO))
    constant = terms.pop("", ZERO)
    if not any(terms.values()):
        raise InputError(
            f"constraint: expected an exponent such as c_readout; got {text!r}, which has none",
            argument="constraint",
        )
    return Constraint(text.strip(), terms, constant, equality=relations[0] in ("=", "=="))


def _sum(side: str, text: str, roles: tuple[str, ...]) -> dict[str, Fraction]:
    """Return the coefficients of a sum; the constant has the name ''."""
    total: dict[str, Fraction] = {}
    rest = side.strip()
    while rest:
        term = _TERM.match(rest)
        role = term and (term["role"] or term["role_first"])
        if not term or not (term["number"] or role) or (total and not term["sign"]):
            raise InputError(
                f"constraint: cannot read {rest!r} in {text!r}; {EXAMPLE}", argument="constraint"
            )
        if role:
            name = f"c_{one_of(role, roles, 'role in the constraint')}"
        else:
            name = ""
        if term["number"]:
            number = exact(term["number"], "constraint")
        else:
            number = ONE
        if term["sign"] == "-":
            number = -number
        total[name] = total.get(name, ZERO) + number
        rest = rest[term.end() :].strip()
    if not total:
        raise InputError(
            f"constraint: one side is empty in {text!r}; {EXAMPLE}", argument="constraint"
        )
    return total
