"""Numbers from users as floating arrays of one namespace: numpy by default, and whatever brings its
own (torch) keeps it.

Single precision stays single if every array is single; Python numbers follow the arrays they meet;
whole numbers become double. A torch tensor is recognised by array-api-compat, so that no floor
below needs to import torch.
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array, to_device

from orderone.core.inputs import ArrayLike


def together(**values: ArrayLike) -> tuple[Any, ...]:
    """(namespace, array, array, ...): the named values in one floating type, on one device, not yet
    broadcast."""
    given: list[Any] = [value for value in values.values() if is_array_api_obj(value)]
    xp = array_namespace(*given) if given else array_namespace(np.empty(0))
    floats = [x.dtype for x in given if xp.isdtype(x.dtype, "real floating")]
    if len(floats) == len(given) and floats:
        dtype = xp.result_type(*floats)
    else:
        dtype = xp.float64
    where = device(given[0]) if given else None
    return xp, *(_read(value, name, xp, dtype, where) for name, value in values.items())


def _read(value: Any, name: str, xp: Any, dtype: Any, where: Any) -> Any:
    try:
        if value is None or (is_array_api_obj(value) and _is_complex(value, xp)):
            raise TypeError("nothing that is real")
        array = xp.asarray(
            _detached(value) if is_array_api_obj(value) else np.asarray(value, float),
            dtype=dtype,
            device=where,
        )
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{name}: expected a number or an array of numbers, got {value!r}; convert it first"
        ) from error
    if 0 in array.shape:
        raise ValueError(
            f"{name}: expected at least one number, got an empty array of shape"
            f" {tuple(array.shape)}"
        )
    return array


def _is_complex(array: Any, xp: Any) -> bool:
    return xp.isdtype(array.dtype, "complex floating")


def _detached(array: Any) -> Any:
    if is_torch_array(array):
        return array.detach()
    return array


def on_host(array: Any) -> np.ndarray:
    """A numpy array of the same type, whatever it was."""
    return np.asarray(to_device(_detached(array), "cpu") if is_torch_array(array) else array)


def as_numpy(array: Any) -> np.ndarray:
    """Double precision, on the host."""
    if is_torch_array(array):  # numpy knows no bfloat16
        array = _detached(array).double()
    return np.asarray(on_host(array), dtype=float)


def like(result: Any, template: Any, xp: Any = None) -> Any:
    """`result` in the namespace (xp, if it is known), type and place of `template`."""
    xp = array_namespace(template) if xp is None else xp
    return xp.asarray(result, dtype=template.dtype, device=device(template))


def bounded(values: Any, low: float | None = None, high: float | None = None) -> Any:
    """`values` within [low, high]. The clip of the array API takes five times as long, for the sake
    of NaN bounds."""
    xp = array_namespace(values)
    kind = {"dtype": values.dtype, "device": device(values)}
    if low is not None:
        values = xp.maximum(values, xp.full((), low, **kind))
    if high is None:
        return values
    return xp.minimum(values, xp.full((), high, **kind))


def broadcast(**arrays: Any) -> tuple[int, ...]:
    """The shape of all of them together, or a ValueError that names them."""
    shapes = [tuple(array.shape) for array in arrays.values()]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        got = ", ".join(map(str, shapes))
        raise ValueError(
            f"{', '.join(arrays)}: expected shapes that broadcast, got {got}; reshape them"
        ) from error


def plain(array: Any) -> Any:
    """An array of no dimensions as a number, where the namespace is numpy's."""
    if isinstance(array, np.ndarray):
        return array[()]
    return array
