"""The update of all tensors that share a law: coefficients for all at once, then a tensor at a
time.

With torch.compile an elementwise law becomes one kernel, which reads and writes everything once.
Tensors are shown to it as (K, entries), so that what is compiled for one serves the others.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from orderone.optimizers.update import Settings, State, TensorUpdates, Update


class BatchedUpdate(TensorUpdates):
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
        self.settings = {
            key: torch.stack([settings[name][key] for name in parameters]) for key in law.numbers
        }
        self.dtype = next(iter(parameters.values())).dtype
        if compile and law.elementwise:
            self._apply = torch.compile(_apply, dynamic=True)
        else:
            self._apply = _apply

    def step(
        self, gradients: Mapping[str, Tensor], t: Mapping[str, Tensor], factor: Tensor
    ) -> None:
        """`t` counts the updates of each tensor, this one included."""
        times = torch.stack([t[name] for name in self.parameters]).unsqueeze(1)
        found = self.law.coefficients(
            {**self.settings, "t": times, "lr": self.settings["lr"] * factor}
        )
        rows = {key: x.to(self.dtype).unbind() for key, x in found.items()}
        for i, (name, p) in enumerate(self.parameters.items()):
            if name not in gradients:
                continue
            own = {key: values[i] for key, values in rows.items()}
            g = gradients[name]
            state = self.states[name]
            if self.law.elementwise:
                p = p.view(len(p), -1)
                g = g.reshape(len(g), -1)
                state = {key: x.view(len(p), -1) for key, x in state.items()}
            shape = (len(p), *[1] * (p.dim() - 1))
            self._apply(self.law, p, g, state, {key: x.view(shape) for key, x in own.items()})


def _apply(law: Update, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
    law(p, g, state, c)
