"""Numbers that users pass, as floating arrays of one array library.

numpy is the default; arrays of another library, such as torch, stay in it. Single precision stays
single if every array is single. Python numbers take the type of the arrays beside them; whole
numbers become double. Scalars of numpy beside arrays of another library count as Python numbers.
array-api-compat recognises torch tensors, so this module does not import torch.
"""

from types import ModuleType

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array, to_device

from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike


def together(**values: ArrayLike) -> tuple[ModuleType, *tuple[Array, ...]]:
    """Return (namespace, array, array, ...), with one floating type on one device.

    The arrays are not broadcast yet. Raise an InputError if they are of several libraries.
    """
    arrays: list[Array] = [value for value in values.values() if is_array_api_obj(value)]
    if any(is_torch_array(x) for x in arrays):
        arrays = [x for x in arrays if not isinstance(x, np.generic)]
        values = {name: _plain(value) for name, value in values.items()}
    if not arrays:
        xp = array_namespace(np.empty(0))
        target_device = None
    else:
        xp = _one_namespace(arrays, list(values))
        target_device = device(arrays[0])
    floating_types = [x.dtype for x in arrays if xp.isdtype(x.dtype, "real floating")]
    if floating_types and len(floating_types) == len(arrays):
        dtype = xp.result_type(*floating_types)
    else:
        dtype = xp.float64
    return xp, *(_read(value, name, xp, dtype, target_device) for name, value in values.items())


def _plain(value: ArrayLike) -> ArrayLike:
    if isinstance(value, np.generic):
        return value.item()
    return value


def _one_namespace(arrays: list[Array], names: list[str]) -> ModuleType:
    try:
        return array_namespace(*arrays)
    except TypeError as error:
        raise InputError(
            f"{', '.join(names)}: expected arrays of one library, got several; convert them first,"
            " for example with torch.as_tensor",
            argument=names[0],
        ) from error


def _read(value: ArrayLike, name: str, xp: ModuleType, dtype: object, target: object) -> Array:
    try:
        array = _convert(value, xp, dtype, target)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise InputError(
            f"{name}: expected a number or an array of numbers, got {value!r}; convert it first",
            argument=name,
        ) from error
    if 0 in array.shape:
        raise InputError(
            f"{name}: expected at least one number, got an empty array of shape"
            f" {tuple(array.shape)}",
            argument=name,
        )
    return array


def _convert(value: Array, xp: ModuleType, dtype: object, target: object) -> Array:
    if not is_array_api_obj(value):
        if value is None:
            raise TypeError("no number")
        return xp.asarray(np.asarray(value, float), dtype=dtype, device=target)
    array: Array = _detached(value)
    if xp.isdtype(array.dtype, "complex floating"):
        raise TypeError("complex numbers")
    return xp.asarray(array, dtype=dtype, device=target)


def _detached(array: Array) -> Array:
    if is_torch_array(array):
        return array.detach()
    return array


def on_host(array: Array) -> np.ndarray:
    """Return a numpy array of the same type, from any library and device."""
    if is_torch_array(array):
        array = to_device(_detached(array), "cpu")
    return np.asarray(array)


def as_numpy(array: Array) -> np.ndarray:
    """Return a numpy array in double precision."""
    if is_torch_array(array):  # numpy has no bfloat16
        array = _detached(array).double()
    return np.asarray(on_host(array), dtype=float)


def like(result: Array, template: Array, xp: ModuleType | None = None) -> Array:
    """Return `result` in the namespace (`xp`, if it is known), type and device of `template`."""
    if xp is None:
        xp = array_namespace(template)
    return xp.asarray(result, dtype=template.dtype, device=device(template))


def bounded(values: Array, low: float | None = None, high: float | None = None) -> Array:
    """Return `values` clipped to [low, high].

    The clip of the array API takes five times as long, because it allows NaN bounds.
    """
    xp = array_namespace(values)
    if low is not None:
        lowest = xp.full((), low, dtype=values.dtype, device=device(values))
        values = xp.maximum(values, lowest)
    if high is not None:
        highest = xp.full((), high, dtype=values.dtype, device=device(values))
        values = xp.minimum(values, highest)
    return values


def broadcast(**arrays: Array) -> tuple[int, ...]:
    """Return the common shape of the arrays, or raise an InputError that names them."""
    shapes = [tuple(array.shape) for array in arrays.values()]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        got = ", ".join(map(str, shapes))
        raise InputError(
            f"{', '.join(arrays)}: expected shapes that broadcast, got {got}; reshape them"
        ) from error


def plain(array: Array) -> Array:
    """Turn a numpy array without dimensions into a number; return other arrays unchanged."""
    if isinstance(array, np.ndarray):
        return array[()]
    return array
