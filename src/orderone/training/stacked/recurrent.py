"""LSTM, GRU and RNN: their weights are held twice, and vmap has no rule for them.

torch.nn.RNNBase keeps a flat list of its parameters and computes with that, so the members' own
have to be put there too. The recurrence itself is torch's, one member after another: what is before
and behind it is still one program.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    """`own` has the tensors of a member by name."""
    cores = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    names = {p: name for name, p in model.named_parameters()} if cores else {}
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


def _name(core: nn.RNNBase, held: Any, names: Mapping[Any, str]) -> str:
    if held in names:
        return names[held]
    raise NotStackable(
        f"{type(core).__name__} computes with weights that are no parameters (reparametrized?), and"
        " cannot be run for many members at once; train one after another (stacked=False)"
    )


def one_by_one(func: Any, mode: "FastPaths", *args: Any, **named: Any) -> Any:
    """`func` for each member by itself; its results, stacked. None if the members are not ours."""
    leaves, spec = tree_flatten((args, named))
    if not mode.known(*(x for x in leaves if isinstance(x, Tensor))):
        return None
    rows = [
        mode.stacked(x).unbind() if isinstance(x, Tensor) else (x,) * mode.members for x in leaves
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", SCATTERED)
        found = [_called(func, tree_unflatten(list(own), spec)) for own in zip(*rows, strict=True)]
    return tree_map(lambda *x: torch.stack(x), *found)


def _called(func: Any, given: tuple[tuple, dict]) -> Any:
    return func(*given[0], **given[1])
