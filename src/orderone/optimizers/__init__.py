"""Optimizers: one file for each, with its record and its stacked update; `table` has them all.

`register` makes a class of yours known, by the law of its updates. `convert_muon_lr` converts
learning rates between the conventions of Muon, and `Muon` obeys all of them.
"""

from orderone.optimizers.muon import Muon
from orderone.optimizers.muon_rates import MUON_CONVENTIONS, convert_muon_lr, muon_factor
from orderone.optimizers.registry import register
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.matrix_laws import shampoo, soap

__all__ = [
    "MUON_CONVENTIONS",
    "Muon",
    "UpdateLaw",
    "convert_muon_lr",
    "muon_factor",
    "register",
    "shampoo",
    "soap",
]
