"""Update of all tensors that share an update law.

The coefficients are computed for all tensors at once, then the tensors are updated one by one. With
torch.compile an elementwise law becomes one kernel, which reads and writes everything once. Tensors
are passed to it in the shape (K, entries), so that one compiled kernel serves all of them.
"""

from collections.abc import Callable, Mapping
from types import FunctionType

import torch
from torch import Tensor

from orderone.optimizers.update import Settings, State, TensorUpdates, Update


class BatchedUpdate(TensorUpdates):
    """Updates each tensor for all members in one call."""

    def __init__(
        self,
        law: Update,
        parameters: Mapping[str, Tensor],
        states: Mapping[str, State],
        settings: Mapping[str, Settings],
        compile: bool = False,
    ):
        self.law = law
        self.parameters = parameters
        self.states = states
        self.settings: dict[str, Tensor] = {}  # settings of all tensors, each of shape (tensors, K)
        for key in law.numbers:
            self.settings[key] = torch.stack([settings[name][key] for name in parameters])
        self.dtype: torch.dtype = next(iter(parameters.values())).dtype
        self._apply: Callable[[Update, Tensor, Tensor, State, Settings], None] = _apply
        if compile and law.elementwise:
            self._apply = torch.compile(_copy_of(_apply), dynamic=True)

    def step(
        self, gradients: Mapping[str, Tensor], t: Mapping[str, Tensor], factor: Tensor
    ) -> None:
        times = torch.stack([t[name] for name in self.parameters])
        now = {**self.settings, "t": times, "lr": self.settings["lr"] * factor}
        coefficients = self.law.coefficients(now)
        by_tensor = {key: x.to(self.dtype).unbind() for key, x in coefficients.items()}
        for place, (name, p) in enumerate(self.parameters.items()):
            if name not in gradients:
                continue
            g = gradients[name]
            state = self.states[name]
            if self.law.elementwise:
                p = p.view(len(p), -1)
                g = g.reshape(len(g), -1)
                state = {key: x.view(len(p), -1) for key, x in state.items()}
            shape = (len(p), *[1] * (p.dim() - 1))
            c = {key: values[place].view(shape) for key, values in by_tensor.items()}
            self._apply(self.law, p, g, state, c)


def _copy_of(function: FunctionType) -> FunctionType:
    """Return a function with code of its own.

    torch compiles the same code only for a few kinds of arguments, and after that runs it as it is.
    """
    same = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    same.__kwdefaults__ = function.__kwdefaults__
    return same


def _apply(law: Update, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
    law(p, g, state, c)
