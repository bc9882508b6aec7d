"""Update of all tensors that share an update law.

The coefficients are computed for all tensors at once, then the tensors are updated one by one. With
torch.compile an elementwise law becomes one kernel, which reads and writes everything once:

    compiled update   tensors are passed in the shape (K, entries): one kernel serves all of them
    traced step       tensors keep their shapes: views of other shapes would split the kernel in
                      two, which read momenta and gradients twice
"""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

import torch
from torch import Tensor

from orderone.optimizers.update import Settings, State, TensorUpdates, Update, UpdateCounts
from orderone.training.stacked.capturing import is_recorded


@torch.library.custom_op("orderone::computed_once", mutates_args=())
def computed_once(x: Tensor) -> Tensor:
    """Return a copy of `x` that a compiler cannot replace by its formula.

    A compiled update would otherwise compute powers in double precision again for every entry.
    """
    return x.clone()


@computed_once.register_fake
def _shape_of_copy(x: Tensor) -> Tensor:
    return torch.empty_like(x)


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
        self.flat: bool = compile and law.elementwise
        if self.flat:
            self._apply = torch.compile(_copy_of(_apply), dynamic=True)

    def step(self, gradients: Mapping[str, Tensor], t: UpdateCounts, factor: Tensor) -> None:
        by_tensor = self._coefficients(t, factor)
        for place, (name, p) in enumerate(self.parameters.items()):
            if name not in gradients:
                continue
            g = gradients[name]
            state = self.states[name]
            if self.flat:
                p = p.view(len(p), -1)
                g = g.reshape(len(g), -1)
                state = {key: x.view(len(p), -1) for key, x in state.items()}
            shape = (len(p), *[1] * (p.dim() - 1))
            c = {key: values[place].view(shape) for key, values in by_tensor.items()}
            self._apply(self.law, p, g, state, c)

    def _coefficients(self, t: UpdateCounts, factor: Tensor) -> dict[str, Sequence[Tensor]]:
        """Return the coefficients of the law; each has one entry (K,) per tensor."""
        now = {**self.settings, "t": t.of(self.parameters), "lr": self.settings["lr"] * factor}
        coefficients = self.law.coefficients(now)
        names = list(coefficients)
        values = torch.stack([x.to(self.dtype) for x in coefficients.values()])
        if is_recorded():
            values = computed_once(values)
        return {name: x.unbind() for name, x in zip(names, values.unbind(), strict=True)}


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
