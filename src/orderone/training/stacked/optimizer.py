"""The optimizers of all members as one: settings read from torch's, states stacked.

What torch's optimizers hold as numbers (learning rate, betas, eps, ...) becomes a tensor with an
entry for each member, so that members differ in them for free. A schedule is one factor for all
learning rates: it cannot break the ratios that a plan has set between groups.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.optimizers.table import UPDATES, class_name
from orderone.optimizers.update import State, TensorUpdates, Update
from orderone.training.stacked.batched_update import BatchedUpdate
from orderone.training.stacked.errors import NotStackable


class StackedOptimizer:
    """`step(gradients)` updates the parameters in place. They have the shape (K, ...)."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
        names: Sequence[Mapping[Any, str]],  # of each optimizer's tensors
        compile: bool = False,
    ):
        groups = [
            _by_name(optimizer, known) for optimizer, known in zip(optimizers, names, strict=True)
        ]
        self.parameters = {name: p for name, p in parameters.items() if name in groups[0]}
        self.compile = compile
        self.laws: dict[str, Update] = {}
        self.settings: dict[str, dict[str, Tensor]] = {}  # of a tensor: name -> (K,)
        for name, p in self.parameters.items():
            members = [group[name] for group in groups]
            self.laws[name] = _law(name, members)
            self.settings[name] = _settings(p, self.laws[name], members)
        self.states: dict[str, State] = {
            name: self.laws[name].state(p) for name, p in self.parameters.items()
        }
        device = next(iter(self.parameters.values())).device
        self.t = torch.zeros(
            len(self.parameters), dtype=torch.float64, device=device
        )  # updates of each tensor
        self.factor = torch.ones((), dtype=torch.float64, device=device)
        self._gather()

    def _gather(self) -> None:
        """Tensors with like laws."""
        alike: dict[str, list[str]] = {}
        for name, law in self.laws.items():
            alike.setdefault(
                f"{type(law).__name__} {law.options} {self.parameters[name].dtype}", []
            ).append(name)
        self.parts = [self._part(names) for names in alike.values()]

    def _part(self, names: list[str]) -> TensorUpdates:
        law = self.laws[names[0]]
        chosen = {name: self.parameters[name] for name in names}
        if chosen[names[0]].device.type == "cpu":
            kernel = law.cpu_kernel(chosen, self.states, self.settings)
            if kernel is not None:
                return kernel
        return BatchedUpdate(law, chosen, self.states, self.settings, self.compile)

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """Tensors without a gradient are left as they are."""
        places = {name: k for k, name in enumerate(self.parameters)}
        used = [k for name, k in places.items() if name in gradients]
        if len(used) == len(places):
            self.t += 1
        else:
            self.t[used] += 1
        times = self.t.unbind()
        for part in self.parts:
            part.step(
                gradients, {name: times[places[name]] for name in part.parameters}, self.factor
            )

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name, for a checkpoint."""
        states = {
            f"{name}:{key}": x for name, state in self.states.items() for key, x in state.items()
        }
        return {**states, "t": self.t}

    def keep(self, members: Tensor, parameters: Mapping[str, Tensor]) -> None:
        """Only these members go on; their parameters are given."""
        self.parameters = {name: parameters[name] for name in self.parameters}
        self.states = {
            n: {k: x[members].clone() for k, x in state.items()} for n, state in self.states.items()
        }
        self.settings = {
            n: {k: x[members].clone() for k, x in h.items()} for n, h in self.settings.items()
        }
        self._gather()


def _by_name(
    optimizer: Optimizer, known: Mapping[Any, str]
) -> dict[str, tuple[type, dict[str, Any]]]:
    """Name of a tensor -> the class that updates it, and its settings."""
    parts = getattr(optimizer, "parts", {"": optimizer})  # Muon with AdamW for the rest
    found = [
        (p, part, group)
        for part in parts.values()
        for group in part.param_groups
        for p in group["params"]
    ]
    for p, _, _ in found:
        if p not in known:
            raise ValueError(
                "optimizers: expected one of each model's own parameters, got a tensor that its"
                f" model has not, of shape {tuple(p.shape)}; make the optimizer from the parameters"
                " of the model at the same place"
            )
    return {known[p]: (type(part), _plain(group, p)) for p, part, group in found}


def _plain(group: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    settings = {key: value for key, value in group.items() if key != "params"}
    if "betas" in settings:
        settings["beta1"], settings["beta2"] = settings.pop("betas")
    if isinstance(settings.get("eps"), tuple):
        floor, settings["eps2"] = settings["eps"]
        settings["eps1"] = torch.finfo(p.dtype).eps if floor is None else floor
    return settings


def _law(name: str, members: Sequence[tuple[type, dict[str, Any]]]) -> Update:
    kinds = {kind: class_name(kind) for kind, _ in members}
    if len(kinds) > 1:
        raise NotStackable(
            f"{name}: expected one optimizer for all members, got"
            f" {' and '.join(sorted(kinds.values()))}"
        )
    kind = members[0][0]
    if (
        kind not in UPDATES
    ):  # a subclass may change the update, and another class of the same name is another optimizer
        known = ", ".join(known.__name__ for known in UPDATES)
        raise NotStackable(
            f"{name}: expected one of {known}, and no subclass; got {class_name(kind)}"
        )
    law = UPDATES[kind]
    first = members[0][1]
    for _, settings in members:
        for key, value in law.refused.items():
            if settings.get(key, value) not in (value, "original"):
                raise NotStackable(
                    f"{name}: expected {key}={value!r} of {kind.__name__}, got {settings[key]!r}"
                )
        for key in law.shared:
            if settings.get(key) != first.get(key):
                raise NotStackable(
                    f"{name}: {key} differs between members: {first.get(key)!r},"
                    f" {settings.get(key)!r}"
                )
    return law({key: first.get(key) for key in law.shared})


def _settings(
    p: Tensor, law: Update, members: Sequence[tuple[type, dict[str, Any]]]
) -> dict[str, Tensor]:
    return {
        key: torch.tensor([float(s[key]) for _, s in members], dtype=torch.float64, device=p.device)
        for key in law.numbers
    }
