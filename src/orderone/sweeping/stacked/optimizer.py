"""The optimizers of all members as one: settings read from torch's, states stacked.

What torch's optimizers hold as numbers (learning rate, betas, eps, ...) becomes a tensor with an entry for each member, so
that members differ in them for free. A schedule is one factor for all learning rates: it cannot break the ratios that a
plan has set between groups.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.sweeping.stacked.errors import NotStackable
from orderone.sweeping.stacked.fused import FusedAdam
from orderone.sweeping.stacked.updates import UPDATES, Adam, AdamW, Update
from orderone.sweeping.stacked.updates.base import State


class StackedOptimizer:
    """`step(gradients)` updates the parameters in place. They have the shape (K, ...)."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
        names: Sequence[Mapping[Any, str]],  # of each optimizer's tensors
        compile: bool = False,
    ):
        groups = [_by_name(optimizer, known) for optimizer, known in zip(optimizers, names, strict=True)]
        self.parameters = {name: p for name, p in parameters.items() if name in groups[0]}
        self.laws: dict[str, Update] = {}
        self.settings: dict[str, dict[str, Tensor]] = {}
        known: dict[str, Update] = {}  # one object for like laws: what is compiled for one tensor serves the others
        for name, p in self.parameters.items():
            members = [group[name] for group in groups]
            law = _law(name, members)
            self.laws[name] = known.setdefault(f"{type(law).__name__} {law.options}", law)
            self.settings[name] = _settings(name, p, self.laws[name], members)
        self.states: dict[str, State] = {name: self.laws[name].state(p) for name, p in self.parameters.items()}
        device = next(iter(self.parameters.values())).device
        self.t = torch.zeros((), dtype=torch.float64, device=device)
        self.factor = torch.ones((), dtype=torch.float64, device=device)
        self._run = torch.compile(_run, dynamic=True) if compile else _run
        self._fuse()

    def _fuse(self) -> None:
        """What torch's fused kernels do best."""
        names = [
            n for n, law in self.laws.items() if type(law) in (Adam, AdamW) and self.parameters[n].device.type == "cpu"
        ]
        self.fused = []
        for decoupled in (False, True):
            own = [n for n in names if bool(self.laws[n].options["decoupled_weight_decay"]) == decoupled]
            if own:
                chosen = {n: self.parameters[n] for n in own}
                settings = {n: self.settings[n] for n in own}
                self.fused.append(FusedAdam(chosen, self.states, settings, decoupled=decoupled))
        self._alone = [name for name in self.parameters if name not in names]

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor]) -> None:
        self.t += 1
        for fused in self.fused:
            fused.step(gradients, self.t.float(), float(self.factor))
        for name in self._alone:
            p, law, state = self.parameters[name], self.laws[name], self.states[name]
            h = {**self.settings[name], "t": self.t, "lr": self.settings[name]["lr"] * self.factor}
            if law.elementwise:  # matrices, whatever they were: one compiled kernel serves all
                flat = {key: value.view(len(p), -1) for key, value in state.items()}
                self._run(law, p.view(len(p), -1), gradients[name].reshape(len(p), -1), flat, _flat(h))
            else:
                law(p, gradients[name], state, h)

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name, for a checkpoint."""
        states = {f"{name}:{key}": x for name, state in self.states.items() for key, x in state.items()}
        return {**states, "t": self.t}

    def keep(self, members: Tensor, parameters: Mapping[str, Tensor]) -> None:
        """Only these members go on; their parameters are given."""
        self.parameters = {name: parameters[name] for name in self.parameters}
        self.states = {n: {k: x[members].clone() for k, x in state.items()} for n, state in self.states.items()}
        self.settings = {n: {k: x[members].clone() for k, x in h.items()} for n, h in self.settings.items()}
        self._fuse()


def _run(law: Update, p: Tensor, g: Tensor, state: State, h: Mapping[str, Tensor]) -> None:
    law(p, g, state, h)


def _flat(h: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: x.view(len(x), 1) if x.dim() else x for key, x in h.items()}


def _by_name(optimizer: Optimizer, known: Mapping[Any, str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of a tensor -> the class that updates it, and its settings."""
    parts = getattr(optimizer, "parts", {"": optimizer})  # Muon with AdamW for the rest
    found = [(p, part, group) for part in parts.values() for group in part.param_groups for p in group["params"]]
    for p, _, _ in found:
        if p not in known:
            raise ValueError(
                f"optimizers: expected one of each model's own parameters, got a tensor that its model has not, of shape "
                f"{tuple(p.shape)}; make the optimizer from the parameters of the model at the same place"
            )
    return {known[p]: (type(part).__name__, _plain(group, p)) for p, part, group in found}


def _plain(group: Mapping[str, Any], p: Tensor) -> dict[str, Any]:
    settings = {key: value for key, value in group.items() if key != "params"}
    if "betas" in settings:
        settings["beta1"], settings["beta2"] = settings.pop("betas")
    if isinstance(settings.get("eps"), tuple):
        floor, settings["eps2"] = settings["eps"]
        settings["eps1"] = torch.finfo(p.dtype).eps if floor is None else floor
    return settings


def _law(name: str, members: Sequence[tuple[str, dict[str, Any]]]) -> Update:
    kinds = sorted({kind for kind, _ in members})
    if len(kinds) > 1:
        raise NotStackable(f"{name}: expected one optimizer for all members, got {' and '.join(kinds)}")
    if kinds[0] not in UPDATES:
        raise NotStackable(f"{name}: expected one of {', '.join(UPDATES)}, got the optimizer {kinds[0]}")
    law, first = UPDATES[kinds[0]], members[0][1]
    for _, settings in members:
        for key, value in law.refused.items():
            if settings.get(key, value) not in (value, "original"):
                raise NotStackable(f"{name}: expected {key}={value!r} of {kinds[0]}, got {settings[key]!r}")
        for key in law.shared:
            if settings.get(key) != first.get(key):
                raise NotStackable(f"{name}: {key} differs between members: {first.get(key)!r}, {settings.get(key)!r}")
    return law({key: first.get(key) for key in law.shared})


def _settings(name: str, p: Tensor, law: Update, members: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Tensor]:
    shape = (len(members), *[1] * (p.dim() - 1))
    return {
        key: torch.tensor([float(s[key]) for _, s in members], dtype=torch.float64, device=p.device).view(shape)
        for key in law.numbers
    }
