"""Width exponents of S0: abc-parameterizations, their predictions, stability and equivalence.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

from orderone.core.roles import MATRIX_ROLES, ROLES
from orderone.theory.exponents.attention import Attention
from orderone.theory.exponents.equivalence import equivalent
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.matrix_laws import shampoo, soap
from orderone.theory.exponents.parameterization import (
    GAUGES,
    Parameterization,
    canonical,
    gauge,
    gradient_exponents,
    shift,
)
from orderone.theory.exponents.sizes import rms
from orderone.theory.exponents.solver import Condition, InfeasibleError, Solution, max_lr, solve
from orderone.theory.exponents.spectral import keeps_spectral_norms, spectral_norms
from orderone.theory.exponents.stability import Verdict, stability
from orderone.theory.exponents.updates import OPTIMIZERS, Alignment, read_alignment

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
    "UpdateLaw",
    "Verdict",
    "canonical",
    "equivalent",
    "gauge",
    "gradient_exponents",
    "keeps_spectral_norms",
    "max_lr",
    "read_alignment",
    "rms",
    "shampoo",
    "shift",
    "soap",
    "solve",
    "spectral_norms",
    "stability",
]
