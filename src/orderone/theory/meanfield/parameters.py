"""weight_var, bias_var and keep, as users give them."""

from typing import Any

from orderone.core import checks
from orderone.core.arrays import together
from orderone.core.inputs import ArrayLike


def parameters(**given: ArrayLike) -> tuple[Any, ...]:
    """(namespace, array, ...), or a ValueError that names what cannot be a variance or a keep
    rate."""
    xp, *arrays = together(**given)
    for name, array in zip(given, arrays, strict=True):
        checks.keep_rate(xp, array) if name == "keep" else checks.variance(xp, array, name)
    return xp, *arrays
