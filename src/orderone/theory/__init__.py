"""What theory predicts, without running a network. Nothing here imports torch."""

from orderone.theory import exponents

__all__ = ["exponents"]
