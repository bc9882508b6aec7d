"""Array shapes for signatures. They are checked under test, where jaxtyping is installed, and are
only words elsewhere."""

from typing import TYPE_CHECKING, Any

Array = Any  # of numpy, torch, or any library that speaks the array API

if TYPE_CHECKING:
    from numpy import ndarray

    Vector = ndarray
else:
    try:
        from jaxtyping import Float
        from numpy import ndarray

        Vector = Float[ndarray, " points"]
    except ImportError:
        Vector = Any

__all__ = ["Array", "Vector"]
