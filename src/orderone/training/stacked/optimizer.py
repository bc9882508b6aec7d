"""One optimizer for all members: settings read from torch's optimizers, states stacked.

The numbers in torch's optimizers (learning rate, betas, eps, ...) become tensors with one entry per
member, so that members may differ in them at no cost. A schedule is one factor for all learning
rates: it cannot change the ratios that a plan has set between groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.optimizers.row_rates import KEY, RowSettings, StackedRows, same_rows
from orderone.optimizers.table import ALGORITHMS, changes_step, class_name, stacked_update
from orderone.optimizers.update import Options, State, TensorUpdates, Update, UpdateCounts
from orderone.training.stacked.batched_update import BatchedUpdate
from orderone.training.stacked.errors import NotStackable


@dataclass(frozen=True)
class MemberSettings:
    """Optimizer class and settings of one member for one tensor."""

    kind: type[Optimizer]
    settings: Options


class StackedOptimizer:
    """`step(gradients)` updates the parameters in place. They have the shape (K, ...)."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
        names: Sequence[Mapping[Tensor, str]],  # per member: tensor -> name
    ):
        by_member: list[dict[str, MemberSettings]] = []
        for optimizer, tensor_names in zip(optimizers, names, strict=True):
            by_member.append(_by_name(optimizer, tensor_names))
        self.compile: bool = False
        self.parameters: dict[str, Tensor] = {}  # those that an optimizer updates
        self.laws: dict[str, Update] = {}
        self.settings: dict[str, dict[str, Tensor]] = {}  # tensor -> setting -> (K,)
        self.states: dict[str, State] = {}
        self.rows: dict[str, StackedRows] = {}  # learning rates of rows
        for name, p in parameters.items():
            if name not in by_member[0]:
                continue
            members = [settings[name] for settings in by_member]
            law = _law(name, members)
            if p.is_complex():
                raise NotStackable(
                    f"{name}: a stack has no update of complex parameters",
                    "optimizer-not-stackable",
                )
            self.parameters[name] = p
            self.laws[name] = law
            self.settings[name] = _settings(p, law, members)
            self.states[name] = law.state(p)
            rows = _stacked_rows(name, p, members)
            if rows is not None:
                self.rows[name] = rows
        example = next(iter(self.parameters.values()))
        device = example.device
        counts = (len(example), len(self.parameters))
        # number of updates of each member and tensor
        self.t: Tensor = torch.zeros(counts, dtype=torch.float64, device=device)
        self.factor: Tensor = torch.ones((), dtype=torch.float64, device=device)
        self._gather()

    def _gather(self, elementary: bool = False) -> None:
        """Group the tensors by update law and precision."""
        alike: dict[str, list[str]] = {}
        for name, law in self.laws.items():
            key = f"{type(law).__name__} {law.options} {self.parameters[name].dtype}"
            alike.setdefault(key, []).append(name)
        self.parts: list[TensorUpdates] = []
        for names in alike.values():
            self.parts.append(self._part(names, elementary))

    def _part(self, names: list[str], elementary: bool) -> TensorUpdates:
        law = self.laws[names[0]]
        chosen = {name: self.parameters[name] for name in names}
        if elementary:
            return BatchedUpdate(law, chosen, self.states, self.settings)
        if chosen[names[0]].device.type == "cpu":
            kernel = law.cpu_kernel(chosen, self.states, self.settings)
            if kernel is not None:
                return kernel
        return BatchedUpdate(law, chosen, self.states, self.settings, self.compile)

    @contextmanager
    def elementary_updates(self) -> Iterator[None]:
        """Update by elementary operations within this context, so that they can be traced."""
        before = self.parts
        self._gather(elementary=True)
        try:
            yield
        finally:
            self.parts = before

    def compile_updates(self) -> None:
        """Compile each update into one kernel from the next step on."""
        if not self.compile:
            self.compile = True
            self._gather()

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], finite: Tensor | None = None) -> None:
        """Update all tensors that have a gradient.

        With `finite`, (K,), members whose entry is False stay as they are, counts included.
        """
        if finite is None:
            self._step(gradients)
            return
        names = [name for name in self.parameters if name in gradients]
        changed: list[Tensor] = [self.t]
        for name in names:
            changed += [self.parameters[name], *self.states[name].values()]
        before = [x.clone() for x in changed]
        self._step(gradients)
        for x, old in zip(changed, before, strict=True):
            x.copy_(torch.where(finite.view(-1, *[1] * (x.dim() - 1)), x, old))

    def _step(self, gradients: Mapping[str, Tensor]) -> None:
        used = [place for place, name in enumerate(self.parameters) if name in gradients]
        if len(used) == len(self.parameters):
            self.t += 1
        else:
            self.t[:, used] += 1
        times = UpdateCounts(self.t, {name: k for k, name in enumerate(self.parameters)})
        before: dict[str, list[Tensor]] = {}
        if self.rows:
            gradients = self._gradients_for_rows(gradients)
            for name, rows in self.rows.items():
                if name in gradients:
                    before[name] = rows.before(self.parameters[name])
        for part in self.parts:
            part.step(gradients, times, self.factor)
        for name, old in before.items():
            p = self.parameters[name]
            lr = self.settings[name]["lr"] * self.factor
            self.rows[name].scale_step(p, old, lr, self.settings[name]["weight_decay"])

    def _gradients_for_rows(self, gradients: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the gradients that the updates of tensors with learning rates of rows see."""
        changed = dict(gradients)
        for name, rows in self.rows.items():
            if name in gradients:
                decay = self.settings[name]["weight_decay"]
                changed[name] = rows.gradient(self.parameters[name], gradients[name], decay)
        return changed

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that a step changes, by name, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, state in self.states.items():
            for key, value in state.items():
                tensors[f"{name}:{key}"] = value
        tensors["t"] = self.t
        return tensors

    def keep(self, members: Tensor, parameters: Mapping[str, Tensor]) -> None:
        """Continue with these members only; `parameters` are theirs."""
        self.parameters = {name: parameters[name] for name in self.parameters}
        for name in self.parameters:
            self.states[name] = _rows(self.states[name], members)
            self.settings[name] = _rows(self.settings[name], members)
        self.rows = {name: rows.keep(members) for name, rows in self.rows.items()}
        self.t = self.t[members].clone()
        self._gather()


def _rows(tensors: Mapping[str, Tensor], members: Tensor) -> dict[str, Tensor]:
    return {key: x[members].clone() for key, x in tensors.items()}


def _by_name(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, MemberSettings]:
    """Return the optimizer class and settings of each tensor of one member."""
    parts = getattr(optimizer, "parts", {"": optimizer})  # Muon with AdamW for the rest
    by_name: dict[str, MemberSettings] = {}
    for part in parts.values():
        if changes_step(part):
            raise NotStackable(
                f"{class_name(type(part))}: this optimizer has hooks or a replaced step method,"
                " which a stack would not call",
                "optimizer-not-stackable",
            )
        for group in part.param_groups:
            for p in group["params"]:
                if p not in names:
                    raise InputError(
                        "optimizers: expected optimizers of the models in the same order, got one"
                        f" with a tensor of shape {tuple(p.shape)} that is not in its model; make"
                        " each optimizer from the parameters of its model",
                        "optimizer-of-other-model",
                        argument="optimizers",
                    )
                by_name[names[p]] = MemberSettings(type(part), _plain(group, p))
    return by_name


def _plain(group: Options, p: Tensor) -> dict[str, Any]:
    """Return the settings of a group, with betas and the pair of eps split into numbers."""
    settings = {key: value for key, value in group.items() if key != "params"}
    betas = settings.get("betas")
    if isinstance(betas, (tuple, list)):
        del settings["betas"]
        for place, beta in enumerate(betas, start=1):  # AdEMAMix has three
            settings[f"beta{place}"] = beta
    eps = settings.get("eps")
    if isinstance(eps, tuple) and len(eps) == 2:
        floor, settings["eps2"] = settings["eps"]
        if floor is None:
            floor = torch.finfo(p.dtype).eps
        settings["eps1"] = floor
    return settings


def _law(name: str, members: Sequence[MemberSettings]) -> Update:
    """Return the update law of a tensor, which all members must share."""
    kind = members[0].kind
    kinds = {member.kind for member in members}
    if len(kinds) > 1:
        class_names = sorted(class_name(kind) for kind in kinds)
        raise NotStackable(
            f"{name}: expected the same optimizer class for all members, got"
            f" {' and '.join(class_names)}",
            "optimizer-not-stackable",
        )
    law = stacked_update(kind)
    if law is None:
        raise NotStackable(
            f"{name}: the update of {class_name(kind)} has no stacked form; expected one of"
            f" {', '.join(ALGORITHMS)}, a subclass that overrides only __init__, or a class that"
            " was registered with stacked=",
            "optimizer-not-stackable",
        )
    first = members[0].settings
    for member in members:
        for key, value in law.refused.items():
            if member.settings.get(key, value) != value:
                raise NotStackable(
                    f"{name}: a stack supports {kind.__name__} only with {key}={value!r}, got"
                    f" {member.settings[key]!r}",
                    "optimizer-not-stackable",
                )
        for key in law.shared:
            if member.settings.get(key) != first.get(key):
                raise NotStackable(
                    f"{name}: expected the same {key} in all members, got {first.get(key)!r} and"
                    f" {member.settings.get(key)!r}",
                    "optimizer-not-stackable",
                )
    return law({key: first.get(key) for key in law.shared})


def _stacked_rows(name: str, p: Tensor, members: Sequence[MemberSettings]) -> StackedRows | None:
    """Return the learning rates of rows of a tensor; None if no member has any."""
    rows: list[RowSettings | None] = []
    decoupled: list[bool] = []
    for member in members:
        settings = member.settings.get(KEY)
        rows.append(settings)
        default = bool(settings and settings["decoupled"])
        decoupled.append(bool(member.settings.get("decoupled_weight_decay", default)))
    known = [settings for settings in rows if settings]
    if not known:
        return None
    if not all(same_rows(known[0], settings) for settings in known):
        raise NotStackable(
            f"{name}: expected learning rates for the same rows in all members",
            "optimizer-not-stackable",
        )
    return StackedRows(p, rows, decoupled)


def _settings(p: Tensor, law: Update, members: Sequence[MemberSettings]) -> dict[str, Tensor]:
    """Return the numeric settings of all members, each as a tensor (K,)."""
    settings: dict[str, Tensor] = {}
    for key in law.numbers:
        values = [float(member.settings[key]) for member in members]
        settings[key] = torch.tensor(values, dtype=torch.float64, device=p.device)
    return settings
