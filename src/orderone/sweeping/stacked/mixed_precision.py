"""Autocast inside vmap, with the casts that it makes outside.

Autocast casts the inputs of an operation when the operation is called. vmap takes many operations
apart before autocast sees them (convolution, softmax, layer norm, most losses), so that the parts
are cast in another way, or not at all. A stack would then compute in other precisions than a
single network.

Here torch is asked what it does: the first time that an operation meets inputs of certain dtypes,
it is run for the first member outside vmap, with and without autocast. The dtype of the results
tells what autocast casts the inputs to. From then on, the inputs are cast to this dtype, and vmap
runs the operation with autocast switched off.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_vmap
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from orderone.sweeping.stacked.paths import FastPaths

NO_CAST = "no cast"
LEFT_TO_VMAP = "left to vmap"  # results of several dtypes: no single cast gives them
_casts: dict[tuple[Any, ...], torch.dtype | str] = {}


def call(mode: "FastPaths", func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return `func(*args, **kwargs)` for all members, with the casts that autocast makes for one."""
    leaves = tree_leaves((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    if not mode.known(*tensors):
        return func(*args, **kwargs)
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device) or not _can_be_repeated(func):
        return func(*args, **kwargs)
    dtypes = tuple(x.dtype if isinstance(x, Tensor) else x for x in leaves if isinstance(x, (Tensor, torch.dtype)))
    key = (func, device, torch.get_autocast_dtype(device), dtypes)
    if key not in _casts:
        try:
            _casts[key] = _ask(mode, func, args, kwargs, device)
        except (RuntimeError, TypeError, ValueError, IndexError):  # what is wrong is said where all members are run
            return func(*args, **kwargs)
    cast = _casts[key]
    if cast == LEFT_TO_VMAP:
        return func(*args, **kwargs)
    if isinstance(cast, torch.dtype):
        args, kwargs = tree_map(lambda x: x.to(cast) if _is_cast(x) else x, (args, dict(kwargs)))
    with _without_autocast(device):
        return func(*args, **kwargs)


@torch.no_grad()
def _ask(
    mode: "FastPaths", func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: str
) -> torch.dtype | str:
    """Run `func` for the first member with and without autocast, and return the dtype that autocast casts to."""
    with outside_vmap():
        first_args, first_kwargs = tree_map(
            lambda x: mode.stacked(x)[0] if isinstance(x, Tensor) else x, (args, dict(kwargs))
        )
        with_autocast = _floating_dtypes(func(*first_args, **first_kwargs))
        with _without_autocast(device):
            try:
                without = _floating_dtypes(func(*first_args, **first_kwargs))
            except RuntimeError:  # inputs of different dtypes, which only autocast makes the same
                without = set()
    if with_autocast == without:
        return NO_CAST
    return with_autocast.pop() if len(with_autocast) == 1 else LEFT_TO_VMAP


def _floating_dtypes(results: Any) -> set[torch.dtype]:
    """Return the precisions among `results`; that of complex numbers is the one of their parts."""
    dtypes = {x.dtype for x in tree_leaves(results) if isinstance(x, Tensor)}
    return {dtype.to_real() for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}


def _is_cast(x: Any) -> bool:
    """Return whether autocast casts it: it leaves double precision alone."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64


@contextmanager
def _without_autocast(device: str) -> Iterator[None]:
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, True)


@cache
def _can_be_repeated(func: Any) -> bool:
    """Return whether `func` is an operation of torch that draws nothing and changes nothing."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    packet = getattr(torch.ops.aten, name.strip("_"), None)
    if packet is None or in_place or isinstance(func, FunctionType):
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return not any(_draws_or_changes(overload) for overload in overloads)


def _draws_or_changes(overload: torch._ops.OpOverload) -> bool:
    if torch.Tag.nondeterministic_seeded in overload.tags:
        return True
    arguments = overload._schema.arguments
    return any(a.alias_info is not None and a.alias_info.is_write and not a.is_out for a in arguments)
