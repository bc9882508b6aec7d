"""Autocast inside vmap, with the same casts as outside.

Autocast casts the inputs of an operation when the operation is called. vmap decomposes many
operations before autocast acts (convolution, softmax, layer norm, most losses), so that their parts
are cast differently, or not at all. A stack would then compute in other precisions than a single
network.

So this module measures what autocast does. The first time that an operation gets inputs of certain
dtypes, copies of the first member's inputs are run outside vmap three times: unchanged, all in
float32, and all in the precision of autocast:

    float32 inputs give results in the precision of autocast    it casts down
    inputs in the precision of autocast give float32 results    it casts up
    neither                                                     it casts nothing

From then on, the inputs are cast in this way, vmap runs the operation with autocast switched off,
and the results get the precision that they had for the first member.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from orderone.torch_compat import OpOverload, operator_schema, outside_vmap, tree_leaves, tree_map
from orderone.training.stacked.constants import Arguments, NamedArguments, TorchFunction

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Casts:
    """Casts that autocast makes for one operation and inputs of certain dtypes."""

    inputs: torch.dtype | None  # None: no cast
    results: torch.dtype | None  # None: results have no precision, or several


_known: dict[tuple[object, ...], Casts] = {}


def call(mode: "FastPaths", func: TorchFunction, args: Arguments, kwargs: NamedArguments) -> object:
    """Return `func(*args, **kwargs)` for all members, with the casts of a single network."""
    if not any(torch.is_autocast_enabled(device) for device in DEVICES):
        return func(*args, **kwargs)
    tensors: list[Tensor] = []
    dtypes: list[torch.dtype] = []
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            dtypes.append(leaf.dtype)
        elif isinstance(leaf, torch.dtype):
            dtypes.append(leaf)
    if not mode.known(*tensors):
        return func(*args, **kwargs)
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device) or not _can_be_repeated(func):
        return func(*args, **kwargs)
    key = (func, device, torch.get_autocast_dtype(device), tuple(dtypes))
    if key not in _known:
        try:
            _known[key] = _measure(mode, func, args, kwargs, device)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return func(*args, **kwargs)  # raises the same error for all members
    casts = _known[key]
    if casts.inputs is not None:
        args, kwargs = _cast((args, dict(kwargs)), casts.inputs)
    with _without_autocast(device):
        results = func(*args, **kwargs)
    if casts.results is None:
        return results
    return _cast(results, casts.results)


@torch.no_grad()
def _measure(
    mode: "FastPaths", func: TorchFunction, args: Arguments, kwargs: NamedArguments, device: str
) -> Casts:
    """Run `func` for the first member outside vmap, and return the casts of autocast."""

    def first_member(x: object) -> object:
        if isinstance(x, Tensor):
            return mode.stacked(x)[0]
        return x

    low = torch.get_autocast_dtype(device)
    with outside_vmap():
        first = tree_map(first_member, (args, dict(kwargs)))
        results = None
        result_dtypes = _cast_dtypes(_run(func, first))
        if len(result_dtypes) == 1:
            results = result_dtypes.pop()
        if _precisions_of(func, first, torch.float32) == {low}:
            return Casts(low, results)
        if _precisions_of(func, first, low) == {torch.float32}:
            return Casts(torch.float32, results)
    if len(_cast_dtypes(first)) > 1:
        # kernels with inputs of two precisions, such as norms with float32 weights, compute in the
        # larger one
        return Casts(torch.float32, results)
    return Casts(None, results)


def _run(func: TorchFunction, inputs: tuple[Arguments, NamedArguments]) -> object:
    """Call `func` with copies of its inputs.

    Some operations write into them, such as batch norm into its statistics.
    """

    def copy(x: object) -> object:
        if isinstance(x, Tensor):
            return x.clone()
        return x

    args, kwargs = tree_map(copy, inputs)
    return func(*args, **kwargs)


def _precisions_of(
    func: TorchFunction, inputs: tuple[Arguments, NamedArguments], dtype: torch.dtype
) -> set[torch.dtype]:
    """Return the precisions of the results for inputs of `dtype`.

    The precision of a complex number is that of its real part.
    """
    try:
        results = tree_leaves(_run(func, _cast(inputs, dtype)))
    except RuntimeError:  # there is no kernel for these inputs
        return set()
    precisions: set[torch.dtype] = set()
    for x in results:
        if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()):
            precisions.add(x.dtype.to_real())
    return precisions


def _cast(tree: object, dtype: torch.dtype) -> Any:
    def cast_leaf(x: object) -> object:
        if _is_cast(x):
            return x.to(dtype)
        return x

    return tree_map(cast_leaf, tree)


def _is_cast(x: object) -> TypeGuard[Tensor]:
    """Return whether autocast may cast `x`; it does not cast double precision."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64


def _cast_dtypes(tree: object) -> set[torch.dtype]:
    """Return the dtypes in a tree that autocast may change."""
    return {x.dtype for x in tree_leaves(tree) if _is_cast(x)}


@contextmanager
def _without_autocast(device: str) -> Iterator[None]:
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, True)


@cache
def _can_be_repeated(func: TorchFunction) -> bool:
    """Return whether `func` is an operation of torch without random draws or in-place writes."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    packet = getattr(torch.ops.aten, name.strip("_"), None)
    if packet is None or in_place or isinstance(func, FunctionType):
        return False
    return not any(_draws_or_changes(getattr(packet, name)) for name in packet.overloads())


def _draws_or_changes(overload: OpOverload) -> bool:
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return True
    for argument in operator_schema(overload).arguments:
        alias = argument.alias_info
        if alias is not None and alias.is_write and not argument.is_out:
            return True
    return False
