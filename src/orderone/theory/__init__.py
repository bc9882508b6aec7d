"""What theory predicts, without running a network. Nothing here imports torch."""

from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.theory import exponents
from orderone.theory.scaling import init_std, lr_factors

if TYPE_CHECKING:
    from orderone.theory import activations, gaussian, kernels, limits, meanfield, transformer
    from orderone.theory.limits import (
        CovarianceSDE,
        UnshapedCorrelationSDE,
        covariance_ode,
        depth_report,
        resnet_ode,
    )
    from orderone.theory.meanfield import (
        MeanField,
        critical_weight_var,
        edge_of_chaos,
        linear_gradient_metrics,
        phase_diagram,
    )
    from orderone.theory.transformer import Transformer

__all__ = [
    "CovarianceSDE",
    "MeanField",
    "Transformer",
    "UnshapedCorrelationSDE",
    "activations",
    "covariance_ode",
    "critical_weight_var",
    "depth_report",
    "edge_of_chaos",
    "exponents",
    "gaussian",
    "init_std",
    "kernels",
    "limits",
    "linear_gradient_metrics",
    "lr_factors",
    "meanfield",
    "phase_diagram",
    "resnet_ode",
    "transformer",
]
_HOMES = {
    "meanfield": (
        "MeanField",
        "critical_weight_var",
        "edge_of_chaos",
        "linear_gradient_metrics",
        "phase_diagram",
    ),
    "limits": (
        "CovarianceSDE",
        "UnshapedCorrelationSDE",
        "covariance_ode",
        "depth_report",
        "resnet_ode",
    ),
    "transformer": ("Transformer",),
}
_PACKAGES = ("activations", "gaussian", "kernels", "limits", "meanfield", "transformer")
__getattr__ = lazy_names(  # these need numpy and scipy, which exponents do without
    __name__,
    dict.fromkeys(_PACKAGES) | {name: home for home, names in _HOMES.items() for name in names},
)


def __dir__() -> list[str]:
    return list(__all__)
