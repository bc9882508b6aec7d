"""Adam on a CPU, a member at a time by torch's fused kernel: one pass over memory, where separate
operations take ten.

A GPU would wait for the launch of each; there the update of all members is compiled instead.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from torch import Tensor

from orderone.torch_compat import fused_adam_, fused_adamw_
from orderone.training.stacked.updates import Adam
from orderone.training.stacked.updates.base import Settings, State

KEYS = ("lr", "weight_decay", "eps", "beta1", "beta2")


class FusedAdam:
    """For tensors that share a law; those with equal settings go in one call."""

    def __init__(
        self,
        law: Adam,
        parameters: Mapping[str, Tensor],
        states: Mapping[str, State],
        settings: Mapping[str, Settings],
    ):
        self.parameters = parameters
        decoupled = law.options["decoupled_weight_decay"]
        self.kernel: Any = fused_adamw_ if decoupled else fused_adam_
        settings = {name: settings[name] for name in parameters}
        self.calls = [
            (dict(zip(KEYS, values, strict=True)), [place for _, place in places])
            for values, places in groupby(sorted(_places(settings)), key=lambda pair: pair[0])
        ]
        self.views = {
            name: (
                p.detach().unbind(),
                states[name]["first"].unbind(),
                states[name]["second"].unbind(),
            )
            for name, p in parameters.items()
        }

    def step(
        self, gradients: Mapping[str, Tensor], t: Mapping[str, Tensor], factor: Tensor
    ) -> None:
        """`t` counts the updates of each tensor, this one included."""
        # the kernel reads memory in order, whatever the strides say
        parts = {
            name: gradients[name].contiguous().unbind()
            for name in self.parameters
            if name in gradients
        }
        times = {name: t[name].float() for name in parts}
        for h, places in self.calls:
            chosen = [
                (self.views[name], parts[name][k], k, times[name])
                for name, k in places
                if name in parts
            ]
            if not chosen:
                continue
            lists = [[views[i][k] for views, _, k, _ in chosen] for i in range(3)]
            options = {**h, "lr": h["lr"] * float(factor)}
            self.kernel(
                lists[0],
                [g for _, g, _, _ in chosen],
                lists[1],
                lists[2],
                [],
                [c[3] for c in chosen],
                amsgrad=False,
                maximize=False,
                **options,
            )


def _places(settings: Mapping[str, Settings]) -> list[tuple[tuple[float, ...], tuple[str, int]]]:
    """(lr, weight decay, ...) of every member of every tensor."""
    return [
        (values, (name, k))
        for name, h in settings.items()
        for k, values in enumerate(zip(*(h[key].tolist() for key in KEYS), strict=True))
    ]
