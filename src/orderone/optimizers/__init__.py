"""Optimizers: one file for each, with its record and its stacked update; `table` has them all.

`register` makes a class of yours known, by the law of its updates.
"""

from orderone.optimizers.registry import register
from orderone.theory.exponents.updates import UpdateLaw

__all__ = ["UpdateLaw", "register"]
