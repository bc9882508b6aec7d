"""Validation of weight_var, bias_var and keep."""

from types import ModuleType

from orderone.core import checks
from orderone.core.arrays import together
from orderone.core.inputs import Array, ArrayLike


def parameters(**values: ArrayLike) -> tuple[ModuleType, *tuple[Array, ...]]:
    """Return (namespace, array, ...) of the named values.

    Raise an InputError that names the value that cannot be a variance or a keep rate.
    """
    xp, *arrays = together(**values)
    for name, array in zip(values, arrays, strict=True):
        if name == "keep":
            checks.keep_rate(xp, array)
        else:
            checks.variance(xp, array, name)
    return xp, *arrays
