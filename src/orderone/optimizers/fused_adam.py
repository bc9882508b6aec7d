"""Adam on a CPU by torch's fused kernel, one member at a time.

The kernel makes one pass over memory instead of the ten of separate operations. On a GPU one launch
per member would be slow; there the update of all members is compiled instead.
"""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from orderone.optimizers.update import Settings, State, TensorUpdates, UpdateCounts
from orderone.torch_compat import fused_adam_, fused_adamw_

SETTINGS = ("lr", "weight_decay", "eps", "beta1", "beta2")


class _Views(NamedTuple):
    """Tensors of one parameter, by member."""

    parameter: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]


class FusedAdam(TensorUpdates):
    """Adam for all tensors of a stack; tensors with equal settings share a call."""

    def __init__(
        self,
        decoupled: bool,
        parameters: Mapping[str, Tensor],
        states: Mapping[str, State],
        settings: Mapping[str, Settings],
    ):
        self.parameters = parameters
        if decoupled:
            self._kernel = fused_adamw_
        else:
            self._kernel = fused_adam_
        self._calls = _by_settings({name: settings[name] for name in parameters})
        self._views: dict[str, _Views] = {}
        for name, p in parameters.items():
            first = states[name]["first"]
            second = states[name]["second"]
            self._views[name] = _Views(p.detach().unbind(), first.unbind(), second.unbind())

    def step(self, gradients: Mapping[str, Tensor], t: UpdateCounts, factor: Tensor) -> None:
        gradients_of: dict[str, tuple[Tensor, ...]] = {}
        times: dict[str, tuple[Tensor, ...]] = {}
        for name in self.parameters:
            if name in gradients:
                # the kernel ignores strides
                gradients_of[name] = gradients[name].contiguous().unbind()
                times[name] = t[name].float().unbind()
        for values, places in self._calls.items():
            used = [(name, member) for name, member in places if name in gradients_of]
            if not used:
                continue
            options = dict(zip(SETTINGS, values, strict=True))
            options["lr"] *= float(factor)
            self._kernel(
                [self._views[name].parameter[member] for name, member in used],
                [gradients_of[name][member] for name, member in used],
                [self._views[name].first[member] for name, member in used],
                [self._views[name].second[member] for name, member in used],
                [],
                [times[name][member] for name, member in used],
                amsgrad=False,
                maximize=False,
                **options,
            )


def _by_settings(
    settings: Mapping[str, Settings],
) -> dict[tuple[float, ...], list[tuple[str, int]]]:
    """Group the members of all tensors, (name, number), by their (lr, weight decay, ...)."""
    places: dict[tuple[float, ...], list[tuple[str, int]]] = {}
    for name, tensor_settings in settings.items():
        columns = [tensor_settings[key].tolist() for key in SETTINGS]
        for member, values in enumerate(zip(*columns, strict=True)):
            places.setdefault(values, []).append((name, member))
    return places
