"""LSTM, GRU and RNN: their weights are held twice, and vmap has no rule for them.

torch.nn.RNNBase keeps a flat list of its parameters and computes with that, so the members' own
have to be put there too. The recurrence itself is torch's, one member after another: what is before
and behind it is still one program.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from orderone.torch_compat import (
    rnn_flat_weights,
    set_rnn_flat_weights,
    tree_flatten,
    tree_map,
    tree_unflatten,
)
from orderone.training.stacked.errors import NotStackable

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths

_CELLS = (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
RECURRENCES = frozenset((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, *_CELLS))
# said of slices of a stack; results are the same
SCATTERED = "RNN module weights are not part of single contiguous"


@contextmanager
def own_weights(model: nn.Module, own: Mapping[str, Tensor]) -> Iterator[None]:
    """Let recurrent layers compute with the tensors of a member; `own` has them by name."""
    cores = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    if not cores:
        yield
        return
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    before = [rnn_flat_weights(core) for core in cores]
    try:
        for core, held in zip(cores, before, strict=True):
            set_rnn_flat_weights(core, [own[_name(core, p, names)] for p in held])
            core.flatten_parameters = _stay_apart
        yield
    finally:
        for core, held in zip(cores, before, strict=True):
            set_rnn_flat_weights(core, held)
            vars(core).pop("flatten_parameters", None)


def _stay_apart() -> None:
    """On a GPU, an RNN that sees new weights moves them into one piece of memory: those of members
    are in a stack."""


def _name(core: nn.RNNBase, held: Tensor, names: Mapping[Tensor, str]) -> str:
    if held in names:
        return names[held]
    raise NotStackable(
        f"{type(core).__name__} computes with weights that are no parameters (reparametrized?), and"
        " cannot be run for many members at once; train one after another (stacked=False)"
    )


def one_by_one(
    func: Callable[..., object], mode: "FastPaths", *args: object, **named: object
) -> object:
    """Return the results of `func` for each member by itself, stacked.

    None if the members are not those of `mode`.
    """
    leaves, spec = tree_flatten((args, named))
    if not mode.known(*(x for x in leaves if isinstance(x, Tensor))):
        return None
    by_leaf: list[Sequence[object]] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            by_leaf.append(mode.stacked(leaf).unbind())
        else:
            by_leaf.append((leaf,) * mode.members)
    results: list[object] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", SCATTERED)
        for member_leaves in zip(*by_leaf, strict=True):
            member_args, member_named = tree_unflatten(list(member_leaves), spec)
            results.append(func(*member_args, **member_named))
    return tree_map(lambda *x: torch.stack(x), *results)
