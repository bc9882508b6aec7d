"""State of an optimizer that has finished, for the optimizer of the next model of the same size.

Half of the memory of a training with Adam is its averages. Linux takes longer to hand out fresh
memory than torch takes to fill it with zeros, so the runs of a check share the averages of the
largest model. A run gives them back before the next one needs them: the peak is that of one run.
"""

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.observe.tensor_facts import is_here, is_plain

Facts = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool]  # of a trained tensor
State = dict[str, Tensor]  # averages and number of steps of one tensor
# their state is zero before the first step
STARTS_AT_ZERO = (torch.optim.Adam, torch.optim.AdamW)


class SpareState:
    """The state of one optimizer, until another one takes it."""

    def __init__(self) -> None:
        self._states: list[tuple[Facts, State]] = []  # by trained tensor

    def keep(self, optimizer: Optimizer) -> None:
        """Keep the state of an optimizer that makes no more steps, if it is on the host."""
        self._states = []
        if type(optimizer) not in STARTS_AT_ZERO:
            return
        for tensor in _tensors(optimizer):
            state = optimizer.state.get(tensor, {})
            if state and _is_on_host(tensor, *state.values()):
                self._states.append((_facts(tensor), state))

    def lend(self, optimizer: Optimizer) -> None:
        """Let an optimizer that has made no step begin with this state, set to zero.

        Each tensor needs the state of one of the same shape, strides and precision.
        """
        tensors = _tensors(optimizer)
        if type(optimizer) not in STARTS_AT_ZERO or optimizer.state:
            return
        if [_facts(tensor) for tensor in tensors] != [facts for facts, _ in self._states]:
            return
        states = self._states
        self._states = []
        for tensor, (_, state) in zip(tensors, states, strict=True):
            for value in state.values():
                value.zero_()
            optimizer.state[tensor] = state


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    tensors: list[Tensor] = []
    for group in optimizer.param_groups:
        tensors += group["params"]
    return tensors


def _is_on_host(*values: object) -> bool:
    for value in values:
        if not isinstance(value, Tensor) or not is_plain(value) or not is_here(value):
            return False
    return True


def _facts(tensor: Tensor) -> Facts:
    """Return what torch copies to a new state, and whether there will be one."""
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, _is_on_host(tensor)
