"""What theory predicts, without running a network. Nothing here imports torch."""

from orderone.theory import exponents
from orderone.theory.scaling import init_std, lr_factors

__all__ = ["exponents", "init_std", "lr_factors"]
