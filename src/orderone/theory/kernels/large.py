"""Kernels of many inputs, strip by strip, into arrays or files.

A network of layers that treat each pair of points separately needs only the two numbers of a pair.
So the strips of both triangles go from the inputs to the result one after another, and nothing of
the size of the result is in memory beside it. A file is a memory-mapped `.npy`.
"""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

from orderone.core.errors import InputError, instance, one_of
from orderone.core.inputs import ArrayLike, Name, UserInput
from orderone.theory.kernels.inputs import sharpened, start
from orderone.theory.kernels.kernel import pinned
from orderone.theory.kernels.layer import Layer, LayerInput, steps_through
from orderone.theory.kernels.pairs import Pairs
from orderone.theory.kernels.sequential import Sequential
from orderone.theory.kernels.strips import Strip, strips

PAIRS_HELD = 2**18
KERNELS = ("nngp", "ntk")

Tile: TypeAlias = Callable[[slice, slice], np.ndarray]  # rows, columns -> part of a kernel

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
    pairs = _Pairwise(net, X)
    count = pairs.count
    dtype = pairs.dtype
    if nngp is None and ntk is None:
        raise InputError(
            "nngp: expected an array or the path of a new file for nngp, ntk or both, got None",
            argument="nngp",
        )
    targets = LargeKernels(_target(nngp, count, dtype, "nngp"), _target(ntk, count, dtype, "ntk"))
    for strip in strips(count, PAIRS_HELD):
        values = pairs.of(strip)
        if targets.nngp is not None:
            strip.write(targets.nngp, values.nngp())
        if targets.ntk is not None:
            strip.write(targets.ntk, values.ntk())
    if targets.nngp is not None:
        pinned(targets.nngp, pairs.points.variance)
    if targets.ntk is not None:
        pinned(targets.ntk, pairs.points.ntk)
    for target in targets:
        if isinstance(target, np.memmap):
            target.flush()
    return targets


@np.errstate(all="ignore")
def tiles(net: LayerInput, X: ArrayLike, kernel: Name = "nngp") -> Tile:
    """Return the function tile(rows, columns), which computes a part of a kernel from X.

    `kernel` is "nngp" or "ntk"; layers and X are those that `write` accepts, and a tile needs
    little memory beside its result. `measure.kernels.Tiles` passes the function to a regression.
    """
    kernel = one_of(kernel, KERNELS, "kernel")
    pairs = _Pairwise(net, X)
    if kernel == "nngp":
        diagonal = pairs.points.variance
    else:
        diagonal = pairs.points.ntk

    @np.errstate(all="ignore")
    def tile(rows: slice, columns: slice) -> np.ndarray:
        first, last, _ = rows.indices(pairs.count)
        left, right, _ = columns.indices(pairs.count)
        result = np.empty((max(last - first, 0), max(right - left, 0)), pairs.dtype)
        if result.size == 0:
            return result
        step = max(1, PAIRS_HELD // (right - left))
        for top in range(first, last, step):
            some = slice(top, min(last, top + step))
            values = pairs.of(Strip(some, slice(left, right)))
            if kernel == "nngp":
                part = values.nngp()
            else:
                part = values.ntk()
            result[top - first : some.stop - first] = part
        same = np.arange(max(first, left), min(last, right))
        result[same - first, same - left] = diagonal[same]
        return result

    return tile


class _Pairwise:
    """Pairs of inputs and a network that treats them separately."""

    def __init__(self, net: LayerInput, X: ArrayLike) -> None:
        net = Sequential(instance(net, Layer, "net", "pass kernels.Sequential(...)"))
        joint = [layer for layer in net.layers if not layer.pointwise]
        if joint:
            raise InputError(
                "net: expected layers that treat pairs of inputs separately, got"
                f" {joint[0]}; call the network with kernels.inputs(X) instead",
                argument="net",
            )
        first = start(X)
        if not is_numpy_array(first.unit) or first.tokens is not None:
            raise InputError(
                "X: expected an array of numpy of shape (inputs, features)", argument="X"
            )
        self._unit = first.unit
        self.count = len(first.unit)
        self.dtype = np.dtype(str(first.dtype))
        self._steps, self.points = steps_through(net.layers, first.points, self.dtype)
        self._size = np.sqrt(np.asarray(self.points.variance)).astype(self.dtype)

    def of(self, strip: Strip) -> "_Values":
        """Return both kernels of the pairs in a strip."""
        a = self._unit[strip.rows]
        b = self._unit[strip.columns]
        gap = sharpened(np.clip(1 - a @ b.T, 0.0, 2.0), a, b).astype(self.dtype)
        pairs = Pairs(gap, np.zeros_like(gap))
        for step in self._steps:
            pairs = step(pairs, strip)
        return _Values(pairs, self._size[strip.rows, None] * self._size[None, strip.columns])


class _Values(NamedTuple):
    pairs: Pairs
    scale: np.ndarray

    def nngp(self) -> np.ndarray:
        return self.scale * (1 - np.clip(self.pairs.gap, 0.0, 2.0))

    def ntk(self) -> np.ndarray:
        return self.scale * self.pairs.tangent


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
