"""What theory predicts, without running a network. Nothing here imports torch."""

from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names
from orderone.theory import exponents
from orderone.theory.scaling import init_std, lr_factors

if TYPE_CHECKING:
    from orderone.theory import activations, kernels

_LATER: dict[str, str | None] = {"activations": None, "kernels": None}  # these need numpy
__all__ = ["activations", "exponents", "init_std", "kernels", "lr_factors"]
__getattr__ = lazy_names(__name__, _LATER)


def __dir__() -> list[str]:
    return __all__
