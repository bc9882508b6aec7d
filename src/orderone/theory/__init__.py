"""What theory predicts, without running a network. Nothing here imports torch."""

from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.theory import exponents
from orderone.theory.scaling import init_std, lr_factors

if TYPE_CHECKING:
    from orderone.theory import activations, gaussian, kernels, meanfield, transformer
    from orderone.theory.meanfield import (
        MeanField,
        critical_weight_var,
        edge_of_chaos,
        linear_gradient_metrics,
        phase_diagram,
    )
    from orderone.theory.transformer import Transformer

__all__ = [
    "MeanField",
    "Transformer",
    "activations",
    "critical_weight_var",
    "edge_of_chaos",
    "exponents",
    "gaussian",
    "init_std",
    "kernels",
    "linear_gradient_metrics",
    "lr_factors",
    "meanfield",
    "phase_diagram",
    "transformer",
]
_MEAN_FIELD = ("MeanField", "critical_weight_var", "edge_of_chaos", "linear_gradient_metrics", "phase_diagram")
_PACKAGES = ("activations", "gaussian", "kernels", "meanfield", "transformer")
__getattr__ = lazy_names(  # these need numpy and scipy, which exponents do without
    __name__, dict.fromkeys(_MEAN_FIELD, "meanfield") | {"Transformer": "transformer"} | dict.fromkeys(_PACKAGES)
)


def __dir__() -> list[str]:
    return list(__all__)
