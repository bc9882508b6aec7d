"""Relative mode: every tensor beside its counterpart in the base. At base size every factor is
1."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from orderone.core.roles import Role
from orderone.observe.inventory import Item, inventory
from orderone.optimizers.table import ALGORITHMS, REST
from orderone.planning import adjustments, param_groups
from orderone.planning.adjustments import Draft
from orderone.planning.apply import sizes_now
from orderone.planning.base import Base, is_configuration, measure, sizes_of
from orderone.planning.counterparts import Counterpart, counterparts, stack_of
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.huggingface import other_numbers
from orderone.planning.options import Request
from orderone.planning.plan import Plan, Row, in_groups
from orderone.planning.roles.evidence import Evidence, declared_layouts, read_overrides
from orderone.planning.roles.resolve import (
    ResolvedRole,
    group_of,
    resolve_roles,
    structural_roles,
)
from orderone.planning.roles.widths import Widths, residual_width
from orderone.rules.factors import Factors, Growth, width_factors


def plan(model: nn.Module, base: Base, request: Request, seen: ForwardFacts) -> Plan:
    return _Comparison(model, base, request, seen).plan()


@dataclass
class _Comparison:
    model: nn.Module
    base: Base
    request: Request
    seen: ForwardFacts

    @cached_property
    def items(self) -> dict[str, Item]:
        return inventory(self.model)

    @cached_property
    def counterparts(self) -> dict[str, Counterpart]:
        return counterparts(self._shapes, self.base.shapes)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: item.shape for name, item in self.items.items()}

    @cached_property
    def seen_as(self) -> dict[str, str]:
        return self.seen.seen_as(self._shapes)

    @cached_property
    def tensors(self) -> list[Evidence]:
        counterparts = self.counterparts
        overrides = read_overrides(self.request.overrides, list(self.items))
        tensors: list[Evidence] = []
        for item in self.items.values():
            base_shape = self.base.shapes[counterparts[item.name].name]
            tensors.append(self._evidence(item, base_shape, overrides.get(item.name)))
        return tensors

    def _evidence(self, item: Item, base_shape: tuple[int, ...], override: Role | None) -> Evidence:
        if len(base_shape) != len(item.shape):
            raise ValueError(
                f"base: {item.name} has {len(base_shape)} dimensions in the base and"
                f" {len(item.shape)} in the model"
            )
        return Evidence(
            item,
            base_shape,
            override=override,
            traced=self.seen.layouts.get(self.seen_as.get(item.name, ""), ()),
            declared=declared_layouts(item),
            is_output=any(place.module in self.seen.outputs for place in item.places),
        )

    @cached_property
    def widths(self) -> Widths:
        return Widths(self.tensors)

    def plan(self) -> Plan:
        drafts = self._drafts()
        request = self.request
        seen = self.seen
        drafts = adjustments.weight_norm(drafts, self.model)
        drafts = adjustments.forward_constants(drafts, seen)
        in_depth = adjustments.residual_branches(drafts, seen, request.depth)
        scores = adjustments.attention_scores(in_depth.drafts, seen, request.power)
        tied = adjustments.tied_readouts(scores.drafts, seen, request)
        gauge = adjustments.gauge(tied.drafts, request)
        drafts = gauge.drafts
        multipliers = (*in_depth.multipliers, *tied.multipliers, *gauge.multipliers)
        undone = (*scores.notes, *tied.notes)
        final_roles = {name: draft.role.role for name, draft in drafts.items()}
        width = residual_width(self.tensors, final_roles)
        rows = tuple(self._row(draft, width) for draft in drafts.values())
        return Plan(
            settings=replace(
                request.settings(relative=True), base_sizes=sizes_of(self.base.module)
            ),
            rows=rows,
            headline=self._headline(rows),
            notes=(
                *in_depth.notes,
                *undone,
                *self._bottlenecks(drafts.values()),
                *seen.findings,
                *self._numbers(),
            ),
            undone=undone,
            multipliers=adjustments.together(multipliers),
            looked=seen.told,
            model=self.model,
            planned=sizes_now({name: item.tensor for name, item in self.items.items()}),
            user_class=request.algorithm.user_class,
        )

    def _drafts(self) -> dict[str, Draft]:
        found = resolve_roles(self.tensors, self.widths, bool(self.seen.outputs))
        structure = structural_roles([self._as_seen(t) for t in self.tensors])
        hidden = {name for name, role in structure.items() if role == "hidden"}
        return {t.name: self._draft(t, found[t.name], t.name in hidden) for t in self.tensors}

    def _as_seen(self, t: Evidence) -> Evidence:
        """With the shape of the instance that was looked at, which is wider than the base: at base
        size a vocabulary may happen to be as large as the width, and what Muon takes must not
        depend on that."""
        shape = self.seen.shapes.get(self.seen_as.get(t.item.name, ""))
        if shape is None:
            return t
        return replace(t, item=replace(t.item, shape=shape))

    def _draft(self, t: Evidence, role: ResolvedRole, hidden: bool) -> Draft:
        name, counterpart = t.item.name, self.counterparts[t.item.name]
        a = self.request.algorithm
        if a.name == "muon" and not (hidden and len(t.item.shape) == 2):
            a = ALGORITHMS[REST]
        if not t.item.tensor.requires_grad:
            role = ResolvedRole(Role.FIXED, Growth(), "not trained: left as it is")
        factors = Factors()
        if role.role != Role.FIXED:
            factors = width_factors(
                self.request.parameterization(a.law), role.role, role.growth, a.law
            )
        if role.role == "readout" and self._is_interior(
            t
        ):  # its outputs feel a sum over the width, of random signs
            factors = replace(factors, gradient=role.growth.fan_in**-0.5)
        if a.name == "muon":
            torchs = param_groups.torch_muon_adjustment(
                t.item.shape
            ) / param_groups.torch_muon_adjustment(t.base_shape)
            factors = replace(factors, lr=factors.lr / torchs)
        return Draft(
            evidence=t,
            role=role,
            algorithm=a,
            factors=factors,
            base=self.base.initial[counterpart.name],
            base_name=counterpart.name,
            depth=counterpart.depth,
            seen_as=self.seen_as.get(name, name),
            reasons=(role.reason,),
        )

    def _is_interior(self, t: Evidence) -> bool:
        return bool(self.seen.outputs) and not t.is_output

    def _row(self, d: Draft, width: int | None) -> Row:
        item = d.evidence.item
        f = d.factors
        a = d.algorithm
        trained = item.tensor.requires_grad
        # frozen: its own size stays
        if trained or item.tensor.is_meta:
            initial = d.base
        else:
            initial = measure(item.tensor)
        decay = self.request.weight_decay_of(a, item.name)
        return Row(
            name=item.name,
            role=d.role.role,
            group=group_of(d.evidence, d.role.role, width),
            shape=item.shape,
            base_shape=d.evidence.base_shape,
            growth=d.role.growth,
            depth=d.depth,
            multiplier=d.multiplier,
            init_std=initial.rms * f.std,
            lr=self.request.lr_of(a) * f.lr,
            weight_decay=param_groups.weight_decay(decay, f, a, self.request.decay),
            eps=param_groups.eps(a, self.request.eps_of(a), f, d.evidence),
            reason="; ".join(d.reasons),
            optimizer=a.name,
            uses=tuple(place.module for place in item.places),
            constant=None if initial.constant is None else initial.constant * f.std,
            base_name=d.base_name,
            base_std=d.base.rms,
            trained=trained,
            factors=f,
        )

    def _headline(self, rows: Sequence[Row]) -> str:
        what = f"{self.request.name} for {self.request.algorithm.label}"
        count = in_groups(rows)
        sizes = sorted(self.widths.passed_on, key=lambda size: size[0])
        depths = {c.depth for c in self.counterparts.values() if c.depth != 1}
        deeper = [f"depth x{max(depths):.4g}"] if depths else []
        if sizes:
            grown = ", ".join(
                f"x{ratio:.4g}" for ratio in sorted({target / base for base, target in sizes})
            )
            widths = ", ".join(f"{base} -> {target}" for base, target in sizes)
            return f"{what}: {', '.join([f'width {grown} ({widths})', *deeper])}; {count}"
        other = {
            self.widths.what(size) for t in self.tensors for size in t.sizes if size[0] != size[1]
        }
        differs = [*deeper, *sorted(other)] or self._settings_that_differ()
        if not differs:
            return (
                f"{what}: the target equals its base: every factor is 1, and the run is the"
                f" original one; {count}"
            )
        return f"{what}: no width grows; base and target differ in {' and '.join(differs)}; {count}"

    def _settings_that_differ(self) -> list[str]:
        """Of Hugging Face configurations: layers that share their tensors are seen nowhere else."""
        ours = sizes_of(self.model) or {}
        theirs = sizes_of(self.base.module) or {}
        return [key for key in theirs if ours.get(key) != theirs[key]]

    def _numbers(self) -> list[str]:
        configs = [getattr(module, "config", None) for module in (self.model, self.base.module)]
        if not all(is_configuration(config) for config in configs):
            return []
        differ = [
            f"{key} ({getattr(configs[1], key, None)} -> {getattr(configs[0], key, None)})"
            for key in other_numbers(*configs)
        ]
        told = (
            "base and target also differ in {}, which the plan does not account for; let them"
            " differ in sizes alone"
        )
        if differ:
            return [told.format(", ".join(differ))]
        return []

    def _bottlenecks(self, drafts) -> list[str]:
        names = ", ".join(
            dict.fromkeys(stack_of(draft.name) for draft in drafts if draft.role.bottleneck)
        )
        told = (
            "fan-in grows and fan-out stays, as at a readout. If that size should grow too, let the"
            " base shrink it"
        )
        return [f"{names}: {told}"] if names else []
