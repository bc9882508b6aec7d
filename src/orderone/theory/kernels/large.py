"""Kernels of many inputs, strip by strip, into arrays or files.

A network of layers that treat each pair of points separately needs only the two numbers of a pair.
So the strips of both triangles go from the inputs to the result one after another, and nothing of
the size of the result is in memory beside it. A file is a memory-mapped `.npy`.
"""

from os import PathLike
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

from orderone.core.errors import InputError, instance
from orderone.core.inputs import ArrayLike, UserInput
from orderone.theory.kernels.inputs import sharpened, start
from orderone.theory.kernels.kernel import pinned
from orderone.theory.kernels.layer import Layer, LayerInput, steps_through
from orderone.theory.kernels.pairs import Pairs
from orderone.theory.kernels.sequential import Sequential
from orderone.theory.kernels.strips import Strip, strips

PAIRS_HELD = 2**18

# an array to fill, or the path of a new .npy file
Target: TypeAlias = Annotated[np.ndarray | str | PathLike[str] | None, UserInput]


class LargeKernels(NamedTuple):
    """Both kernels, (inputs, inputs); None for the one that was not asked for."""

    nngp: np.ndarray | None
    ntk: np.ndarray | None


@np.errstate(all="ignore")  # overflow shows as infinity in the result
def write(net: LayerInput, X: ArrayLike, nngp: Target = None, ntk: Target = None) -> LargeKernels:
    """Write the kernels of inputs (inputs, features) into arrays or new `.npy` files.

    All layers must treat pairs separately: Dense, Activation, Dropout, norms, Scale, and Residual
    of these. Working memory is a few megabytes beside X and the results. X is an array of numpy;
    its precision is that of the pairs.
    """
    net = Sequential(instance(net, Layer, "net", "pass kernels.Sequential(...)"))
    _refuse_joint_layers(net)
    first = start(X)
    if not is_numpy_array(first.unit) or first.tokens is not None:
        raise InputError("X: expected an array of numpy of shape (inputs, features)", argument="X")
    count = len(first.unit)
    dtype = np.dtype(str(first.dtype))
    if nngp is None and ntk is None:
        raise InputError(
            "nngp: expected an array or the path of a new file for nngp, ntk or both, got None",
            argument="nngp",
        )
    targets = LargeKernels(_target(nngp, count, dtype, "nngp"), _target(ntk, count, dtype, "ntk"))
    steps, points = steps_through(net.layers, first.points, dtype)
    size = np.sqrt(np.asarray(points.variance)).astype(dtype)
    for strip in strips(count, PAIRS_HELD):
        pairs = _input_pairs(first.unit, strip, dtype)
        for step in steps:
            pairs = step(pairs, strip)
        scale = size[strip.rows, None] * size[None, strip.columns]
        if targets.nngp is not None:
            strip.write(targets.nngp, scale * (1 - np.clip(pairs.gap, 0.0, 2.0)))
        if targets.ntk is not None:
            strip.write(targets.ntk, scale * pairs.tangent)
    if targets.nngp is not None:
        pinned(targets.nngp, points.variance)
    if targets.ntk is not None:
        pinned(targets.ntk, points.ntk)
    for target in targets:
        if isinstance(target, np.memmap):
            target.flush()
    return targets


def _refuse_joint_layers(net: Sequential) -> None:
    joint = [layer for layer in net.layers if not layer.pointwise]
    if joint:
        raise InputError(
            f"net: expected layers that treat pairs of inputs separately, got {joint[0]}; call the"
            " network with kernels.inputs(X) instead",
            argument="net",
        )


def _input_pairs(unit: np.ndarray, strip: Strip, dtype: np.dtype) -> Pairs:
    """Return the pairs of a strip before the first layer; `unit` are inputs of length 1."""
    a = unit[strip.rows]
    b = unit[strip.columns]
    gap = sharpened(np.clip(1 - a @ b.T, 0.0, 2.0), a, b).astype(dtype)
    rows = np.arange(len(a))
    gap[rows, rows] = 0
    return Pairs(gap, np.zeros_like(gap))


def _target(target: Target, count: int, dtype: np.dtype, name: str) -> np.ndarray | None:
    if target is None:
        return None
    if isinstance(target, np.ndarray):
        if target.shape != (count, count) or target.dtype != dtype:
            raise InputError(
                f"{name}: expected an array of shape {(count, count)} and type {dtype}, got"
                f" {target.shape} and {target.dtype}",
                argument=name,
            )
        return target
    try:
        path = Path(target)
    except TypeError:
        raise InputError(
            f"{name}: expected an array to fill or the path of a new .npy file, got {target!r}",
            "wrong-type",
            argument=name,
        ) from None
    if path.exists():
        raise InputError(
            f"{name}: the file {path} exists; choose a new one or delete it", argument=name
        )
    shape = (count, count)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
