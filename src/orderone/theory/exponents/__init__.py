"""Exponents of width: abc-parameterizations, what they predict, when they are stable, and which are
the same (S0)."""

from orderone.theory.exponents.alignment import Alignment, read_alignment
from orderone.theory.exponents.attention import Attention
from orderone.theory.exponents.conditions import Condition
from orderone.theory.exponents.gauge import GAUGES, canonical, equivalent, gauge, shift
from orderone.theory.exponents.optimizers import OPTIMIZERS
from orderone.theory.exponents.parameterization import MATRIX_ROLES, ROLES, Parameterization
from orderone.theory.exponents.sizes import gradient_exponents, rms
from orderone.theory.exponents.solver import InfeasibleError, Solution, max_lr, solve
from orderone.theory.exponents.stability import Verdict, stability

__all__ = [
    "GAUGES",
    "MATRIX_ROLES",
    "OPTIMIZERS",
    "ROLES",
    "Alignment",
    "Attention",
    "Condition",
    "InfeasibleError",
    "Parameterization",
    "Solution",
    "Verdict",
    "canonical",
    "equivalent",
    "gauge",
    "gradient_exponents",
    "max_lr",
    "read_alignment",
    "rms",
    "shift",
    "solve",
    "stability",
]
