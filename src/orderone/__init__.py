"""Everything a network computes should stay of order one as the network grows.

predict   `orderone.theory`, `orderone.rules`: exact exponents, largest stable learning rates, verdicts
measure   `orderone.measure`: fitted exponents with intervals
          `orderone.nn`, `orderone.gallery`: the papers' models and tables
"""

from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_submodules

if TYPE_CHECKING:
    from orderone import gallery, measure, nn, rules, theory

__version__ = "0.1.0"
__all__ = ["gallery", "measure", "nn", "rules", "theory"]
__getattr__ = lazy_submodules(__name__, tuple(__all__))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
