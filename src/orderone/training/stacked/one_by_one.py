"""Operations that are run for one member after another, outside vmap.

Used for operations without a vmap rule, and for those whose results have a shape that depends on
values, such as `x[mask]`. If that shape differs between members, the members have made different
decisions (`decisions.py`): the pass is run again for each group of members with the same shapes.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from orderone.torch_compat import tree_flatten, tree_leaves, tree_map, tree_unflatten
from orderone.training.stacked.decisions import Divided

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths

# torch warns about slices of a stack; the results are the same
SCATTERED = "RNN module weights are not part of single contiguous"


def one_by_one(
    func: Callable[..., object], mode: "FastPaths", *args: object, **named: object
) -> object:
    """Run `func` for one member after another and return the stacked results.

    Return None if another vmap maps one of the tensors, or none does.
    """
    if not mode.known(*(x for x in tree_leaves((args, named)) if isinstance(x, Tensor))):
        return None
    return for_each_member(func, mode, *args, **named)


def for_each_member(
    func: Callable[..., object], mode: "FastPaths", *args: object, **named: object
) -> object:
    """Run `func` for one member after another and return the stacked results.

    If it draws random numbers, each member draws from its state.
    """
    calls = _calls(func, mode, args, named)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", SCATTERED)
        if mode.draws is None:
            results = [call() for call in calls]
        else:
            results = mode.draws.each(calls)
    return _stacked(results)


def for_each_without_draws(
    func: Callable[..., object], mode: "FastPaths", *args: object, **named: object
) -> object:
    """Run a `func` that draws no random numbers; the states of members are not exchanged."""
    return _stacked([call() for call in _calls(func, mode, args, named)])


def _calls(
    func: Callable[..., object], mode: "FastPaths", args: object, named: object
) -> list[Callable[[], object]]:
    """Return the call of each member."""
    leaves, spec = tree_flatten((args, named))
    by_leaf: list[Sequence[object]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            by_leaf.append(mode.stacked(leaf).unbind())
        else:
            by_leaf.append((leaf,) * mode.members)
    calls: list[Callable[[], object]] = []
    for k in range(mode.members):
        member_args, member_named = tree_unflatten([parts[k] for parts in by_leaf], spec)
        calls.append(partial(func, *member_args, **member_named))
    return calls


def _stacked(results: Sequence[object]) -> object:
    _must_have_one_shape(results)
    return tree_map(_stack, *results)


def _must_have_one_shape(results: Sequence[object]) -> None:
    """Raise Divided if the results of members have different shapes."""
    shapes: list[object] = []
    for result in results:
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        shapes.append(tuple(tuple(x.shape) for x in tensors))
    if any(shape != shapes[0] for shape in shapes):
        raise Divided(shapes)


def _stack(*leaves: object) -> object:
    if isinstance(leaves[0], Tensor):
        return torch.stack(leaves)  # type: ignore[arg-type]
    return leaves[0]


# --- operations whose results have a shape that depends on values ---------------------------------

SHAPED_BY_VALUES: tuple[Callable[..., object], ...] = (
    torch.masked_select,
    Tensor.masked_select,
    torch.nonzero,
    Tensor.nonzero,
    torch.argwhere,
    Tensor.argwhere,
    torch.bincount,
    Tensor.bincount,
    torch.unique_consecutive,
    Tensor.unique_consecutive,
    torch.unique,
    Tensor.unique,
)


def indexed(mode: "FastPaths", x: Tensor, index: object) -> object:
    """Return `x[index]` if the index has a mask that differs between members."""
    for leaf in tree_leaves(index):
        if isinstance(leaf, Tensor) and leaf.dtype == torch.bool and mode.mapped(leaf):
            return one_by_one(Tensor.__getitem__, mode, x, index)
    return None


def places_where(mode: "FastPaths", condition: Tensor, *values: object) -> object:
    """Return `torch.where(condition)`; with values it is left to vmap."""
    if values:
        return None
    return one_by_one(torch.where, mode, condition)


def repeated(mode: "FastPaths", x: Tensor, *args: object, **named: object) -> object:
    """Return `repeat_interleave` if the numbers of repetitions differ between members."""
    counts = args[0] if args else named.get("repeats")
    if isinstance(counts, Tensor) and mode.mapped(counts):
        return one_by_one(torch.repeat_interleave, mode, x, *args, **named)
    return None
