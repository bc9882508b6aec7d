"""A rule applied to the tensors of a real model: `plan` only reads, `Plan.apply` writes once."""

from orderone.observe.inventory import Layout, lookup, matrix, register
from orderone.planning.build import plan
from orderone.planning.optimizer_groups import BrokenRatios
from orderone.planning.plan import Multiplier, Plan
from orderone.planning.plan_row import Row
from orderone.planning.roles.resolve import AmbiguousRole

__all__ = [
    "AmbiguousRole",
    "BrokenRatios",
    "Layout",
    "Multiplier",
    "Plan",
    "Row",
    "lookup",
    "matrix",
    "plan",
    "register",
]
