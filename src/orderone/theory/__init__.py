"""What theory predicts, without running a network. Nothing here imports torch."""

from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.theory import exponents
from orderone.theory.scaling import init_std, lr_factors

if TYPE_CHECKING:
    from orderone.theory import limits
    from orderone.theory.limits import (
        CovarianceSDE,
        UnshapedCorrelationSDE,
        covariance_ode,
        depth_report,
        resnet_ode,
    )

__all__ = [
    "CovarianceSDE",
    "UnshapedCorrelationSDE",
    "covariance_ode",
    "depth_report",
    "exponents",
    "init_std",
    "limits",
    "lr_factors",
    "resnet_ode",
]
_LIMITS = ("CovarianceSDE", "UnshapedCorrelationSDE", "covariance_ode", "depth_report", "resnet_ode")
# numpy and scipy load when these are used
__getattr__ = lazy_names(__name__, {"limits": None} | dict.fromkeys(_LIMITS, "limits"))


def __dir__() -> list[str]:
    return list(__all__)
