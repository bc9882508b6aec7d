"""Predictions without running a network: exponents, mean fields, kernels, limits. No torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.theory import exponents
from orderone.theory.scaling import (
    LANGUAGE_STD,
    init_std,
    language_constants,
    lr_factors,
    n_rescale,
    vision_constants,
)

if TYPE_CHECKING:
    from orderone.theory import (
        activations,
        finite_width,
        first_pass,
        gaussian,
        kernels,
        limits,
        meanfield,
        transformer,
    )
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
    "LANGUAGE_STD",
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
    "finite_width",
    "first_pass",
    "gaussian",
    "init_std",
    "kernels",
    "language_constants",
    "limits",
    "linear_gradient_metrics",
    "lr_factors",
    "meanfield",
    "n_rescale",
    "phase_diagram",
    "resnet_ode",
    "transformer",
    "vision_constants",
]
# Loaded on first use: these need numpy and scipy, `exponents` and `scaling` do not.
__getattr__: Callable[[str], object] = lazy_names(
    __name__,
    {
        "activations": None,
        "finite_width": None,
        "first_pass": None,
        "gaussian": None,
        "kernels": None,
        "limits": None,
        "meanfield": None,
        "transformer": None,
        "MeanField": "meanfield",
        "critical_weight_var": "meanfield",
        "edge_of_chaos": "meanfield",
        "linear_gradient_metrics": "meanfield",
        "phase_diagram": "meanfield",
        "CovarianceSDE": "limits",
        "UnshapedCorrelationSDE": "limits",
        "covariance_ode": "limits",
        "depth_report": "limits",
        "resnet_ode": "limits",
        "Transformer": "transformer",
    },
)


def __dir__() -> list[str]:
    return list(__all__)
