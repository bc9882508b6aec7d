"""Numbers from users as floating arrays of one namespace: numpy by default, and whatever brings its own (torch) keeps it.

Single precision stays single if every array is single; Python numbers follow the arrays they meet; whole numbers
become double. A torch tensor is recognised by array-api-compat, so that no floor below needs to import torch.
"""

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array, to_device

from orderone.core.given import ArrayLike


def together(**values: ArrayLike) -> tuple[Any, ...]:
    """(namespace, array, array, ...): the named values in one floating type, on one device, not yet broadcast."""
    given: list[Any] = [value for value in values.values() if is_array_api_obj(value)]
    xp = array_namespace(*given) if given else array_namespace(np.empty(0))
    floats = [x.dtype for x in given if xp.isdtype(x.dtype, "real floating")]
    dtype = xp.result_type(*floats) if len(floats) == len(given) and floats else xp.float64
    where = device(given[0]) if given else None
    return xp, *(_read(value, name, xp, dtype, where) for name, value in values.items())


def _read(value: Any, name: str, xp: Any, dtype: Any, where: Any) -> Any:
    try:
        if value is None or (is_array_api_obj(value) and xp.isdtype(value.dtype, "complex floating")):
            raise TypeError("nothing that is real")
        array = xp.asarray(
            _detached(value) if is_array_api_obj(value) else np.asarray(value, float), dtype=dtype, device=where
        )
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{name}: expected a number or an array of numbers, got {value!r}; convert it first"
        ) from error
    if 0 in array.shape:
        raise ValueError(f"{name}: expected at least one number, got an empty array of shape {tuple(array.shape)}")
    return array


def _detached(array: Any) -> Any:
    return array.detach() if is_torch_array(array) else array


def as_numpy(array: Any) -> np.ndarray:
    """Double precision, on the host."""
    if is_torch_array(array):  # numpy knows neither gradients nor bfloat16
        array = to_device(_detached(array), "cpu").double()
    return np.asarray(array, dtype=float)


def like(result: Any, template: Any, xp: Any) -> Any:
    """`result` in the namespace, type and place of `template`."""
    return xp.asarray(result, dtype=template.dtype, device=device(template))


def plain(array: Any) -> Any:
    """An array of no dimensions as a number, where the namespace is numpy's."""
    return array[()] if isinstance(array, np.ndarray) else array
