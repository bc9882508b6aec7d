"""Everything a network computes should stay of order one as the network grows.

predict   `orderone.theory`, `orderone.rules`: exact exponents, largest stable learning rates, verdicts
measure   `orderone.measure`: fitted exponents with intervals
          `orderone.nn`, `orderone.gallery`: the papers' models and tables
"""

from orderone.core.lazy import lazy_submodules

__version__ = "0.1.0"
__getattr__ = lazy_submodules(__name__, ("gallery", "measure", "nn", "rules", "theory"))
