"""LSTM, GRU and RNN, which store their weights twice and have no vmap rule.

torch.nn.RNNBase has a flat list of its parameters and computes with that list, so the weights of
the members must be put there too. The recurrence itself is run by torch, one member after another;
the operations before and after it are still run for all members at once (`one_by_one.py`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orderone.torch_compat import rnn_flat_weights, set_rnn_flat_weights
from orderone.training.stacked.errors import NotStackable

_CELLS = (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
RECURRENCES = frozenset((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, *_CELLS))


@contextmanager
def member_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Make recurrent layers compute with the tensors of a member, given by name."""
    cores = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    if not cores:
        yield
        return
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    before = [rnn_flat_weights(core) for core in cores]
    try:
        for core, weights in zip(cores, before, strict=True):
            set_rnn_flat_weights(core, [tensors[_name(core, p, names)] for p in weights])
            core.flatten_parameters = _do_not_flatten
        yield
    finally:
        for core, weights in zip(cores, before, strict=True):
            set_rnn_flat_weights(core, weights)
            vars(core).pop("flatten_parameters", None)


def _do_not_flatten() -> None:
    """Do nothing: on a GPU, an RNN would move the weights of a member out of the stack."""


def _name(core: nn.RNNBase, weight: Tensor, names: Mapping[Tensor, str]) -> str:
    if weight in names:
        return names[weight]
    raise NotStackable(
        f"{type(core).__name__} uses weights that are not parameters (weight_norm or another"
        " parametrization?); train one after another (stacked=False)",
        "parametrized-recurrence",
    )
