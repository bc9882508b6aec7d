"""muP for any PyTorch model: tune a small model, reuse its hyperparameters on a large one.

apply     `plan`: initial sizes and learning rates of a rule for any PyTorch model and optimizer,
          without editing the model; `lookup`, `matrix` and `register` describe custom layers;
          `optimizers.register` makes your optimizer known
check     `coord_check`: whether activations and updates stay of order one as the width grows;
          `probe`, `alignment`, `gradient_metrics`, `dropout_metrics`, `sample_network`;
          `noise_scale`: the critical batch size, from the noise of gradients
transfer  `sweep`: tune many small models at once, and test whether the best settings transfer;
          `train`, `log_grid`, `multipliers`
predict   `theory`, `rules`: exact width exponents, largest stable learning rates, kernels, limits;
          `empirical_ntk`, `empirical_nngp`, `linearize`: kernels of a model as it is;
          `kernel_from_module`: those of the same model at infinite width
draw      `report`: plans, checks and sweeps as pictures
papers    `nn`, `gallery`, `data`: models, tables and figures of the papers, and data sets

Every error about an argument is an `InputError`, a ValueError with a code; `orderone explain CODE`
says what to do.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.core.version import VERSION

if TYPE_CHECKING:
    from orderone import (
        data,
        gallery,
        measure,
        nn,
        optimizers,
        planning,
        report,
        rules,
        sweeping,
        theory,
    )
    from orderone.core.errors import InputError
    from orderone.measure import (
        alignment,
        coord_check,
        dropout_metrics,
        gradient_metrics,
        noise_scale,
        probe,
        sample_network,
    )
    from orderone.measure.kernels import (
        empirical_nngp,
        empirical_ntk,
        kernel_from_module,
        linearize,
    )
    from orderone.planning import AmbiguousRole, BrokenRatios, Plan, lookup, matrix, plan, register
    from orderone.sweeping import (
        Execution,
        Search,
        Sweep,
        Training,
        Transfer,
        log_grid,
        multipliers,
        sweep,
        train,
    )

__version__ = VERSION
__all__ = [
    "AmbiguousRole",
    "BrokenRatios",
    "Execution",
    "InputError",
    "Plan",
    "Search",
    "Sweep",
    "Training",
    "Transfer",
    "alignment",
    "coord_check",
    "data",
    "dropout_metrics",
    "empirical_nngp",
    "empirical_ntk",
    "gallery",
    "gradient_metrics",
    "kernel_from_module",
    "linearize",
    "log_grid",
    "lookup",
    "matrix",
    "measure",
    "multipliers",
    "nn",
    "noise_scale",
    "optimizers",
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
    "core.errors": ("InputError",),
    "planning": ("AmbiguousRole", "BrokenRatios", "Plan", "lookup", "matrix", "plan", "register"),
    "sweeping": (
        "Execution",
        "Search",
        "Sweep",
        "Training",
        "Transfer",
        "log_grid",
        "multipliers",
        "sweep",
        "train",
    ),
    "measure": (
        "alignment",
        "coord_check",
        "dropout_metrics",
        "gradient_metrics",
        "noise_scale",
        "probe",
        "sample_network",
    ),
    "measure.kernels": ("empirical_nngp", "empirical_ntk", "kernel_from_module", "linearize"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__getattr__: Callable[[str], object] = lazy_names(
    __name__, {name: _HOME.get(name) for name in __all__}
)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
