"""Parameterizations and axes of scale as data.

rules    `get` one by name, make a `custom` one, derive one `from_alignment`, list the `names`
axes     `compose` a rule with rules for depth, batch size, tokens, weight decay and further axes
plugins  packages ship a `RuleTable`, an `Axis` or a `Composition` as entry point `orderone.rules`
"""

from orderone.rules import axes
from orderone.rules.axes import Axis, Factors, ScaledTensor
from orderone.rules.composition import Composition, compose
from orderone.rules.parameterizations import (
    RuleTable,
    assumed_alignment,
    custom,
    from_alignment,
    get,
    is_known,
    names,
)

__all__ = [
    "Axis",
    "Composition",
    "Factors",
    "RuleTable",
    "ScaledTensor",
    "assumed_alignment",
    "axes",
    "compose",
    "custom",
    "from_alignment",
    "get",
    "is_known",
    "names",
]
