"""Everything a network computes should stay of order one as the network grows.

predict   `orderone.theory`, `orderone.rules`: exact exponents, largest stable learning rates, verdicts
apply     `orderone.plan`: a rule put to any PyTorch model and optimizer, without editing the model
measure   `orderone.measure`: fitted exponents with intervals
          `orderone.nn`, `orderone.gallery`: the papers' models and tables
"""

from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names

if TYPE_CHECKING:
    from orderone import gallery, measure, nn, planning, rules, theory
    from orderone.planning import AmbiguousRole, BrokenRatios, Plan, lookup, matrix, plan, register

__version__ = "0.1.0"
__all__ = [
    "AmbiguousRole",
    "BrokenRatios",
    "Plan",
    "gallery",
    "lookup",
    "matrix",
    "measure",
    "nn",
    "plan",
    "planning",
    "register",
    "rules",
    "theory",
]
_FROM_PLANNING = ("AmbiguousRole", "BrokenRatios", "Plan", "lookup", "matrix", "plan", "register")
__getattr__ = lazy_names(__name__, {name: "planning" if name in _FROM_PLANNING else None for name in __all__})


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
