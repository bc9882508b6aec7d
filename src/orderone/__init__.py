"""Everything a network computes should stay of order one as the network grows.

predict   `orderone.theory`, `orderone.rules`: exact exponents, largest stable learning rates,
          verdicts
apply     `orderone.plan`: a rule put to any PyTorch model and optimizer, without editing the model
measure   `orderone.probe`, `orderone.coord_check`, `orderone.alignment`: what a model does while it
          trains, and a verdict
transfer  `orderone.sweep`: many small models at once, the best settings, and whether they carry
over; `orderone.train`
          `orderone.report`: the same as pictures
          `orderone.nn`, `orderone.gallery`: the papers' models and tables
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.core.renamed import install as accept_old_names
from orderone.core.version import VERSION

if TYPE_CHECKING:
    from orderone import data, gallery, measure, nn, planning, report, rules, sweeping, theory
    from orderone.measure import (
        alignment,
        coord_check,
        dropout_metrics,
        gradient_metrics,
        probe,
        sample_network,
    )
    from orderone.planning import AmbiguousRole, BrokenRatios, Plan, lookup, matrix, plan, register
    from orderone.sweeping import (
        Execution,
        Search,
        Sweep,
        Training,
        Transfer,
        log_grid,
        sweep,
        train,
    )

__version__ = VERSION
accept_old_names()  # of modules, with a warning
__all__ = [
    "AmbiguousRole",
    "BrokenRatios",
    "Execution",
    "Plan",
    "Search",
    "Sweep",
    "Training",
    "Transfer",
    "alignment",
    "coord_check",
    "data",
    "dropout_metrics",
    "gallery",
    "gradient_metrics",
    "log_grid",
    "lookup",
    "matrix",
    "measure",
    "nn",
    "plan",
    "planning",
    "probe",
    "register",
    "report",
    "rules",
    "sample_network",
    "sweep",
    "sweeping",
    "theory",
    "train",
]
_HOMES = {
    "planning": ("AmbiguousRole", "BrokenRatios", "Plan", "lookup", "matrix", "plan", "register"),
    "sweeping": (
        "Execution",
        "Search",
        "Sweep",
        "Training",
        "Transfer",
        "log_grid",
        "sweep",
        "train",
    ),
    "measure": (
        "alignment",
        "coord_check",
        "dropout_metrics",
        "gradient_metrics",
        "probe",
        "sample_network",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__getattr__: Callable[[str], object] = lazy_names(
    __name__, {name: _HOME.get(name) for name in __all__}
)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
