"""Relative mode: a plan from every tensor and its counterpart in the base.

At base size every factor is 1.

The path of a learning rate:

    roles/resolve.py             role of the tensor, and the growth of its fan-in and fan-out
    options.py                   `Request.parameterization`: the rule for this update law.
    rules/parameterizations.py   `get`: a and b of the rule; c comes from
                                 theory/exponents/solver.py
    rules/axes/width.py          `width_factors`: factors of this role, growth and update law
    `_factors`                   divides by the factor that torch.optim.Muon applies to lr
    start.py                     initial sizes of the base, if the user asks for a start
    adjustments.py               in this order: weight norm, constants in the forward code, rank of
                                 adapters (adapter_factors.py), number of experts
                                 (expert_factors.py), residual branches, attention scores, tied
                                 readouts, gauge. Without a rule
                                 for depth, own_depth.py keeps the initial sizes that the model's
                                 own code sets at its depth
    settings.py                  `Setting.of`: the user's learning rate of this tensor, for the base
    `_row`                       the product of the user's learning rate and the factor
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from torch import nn

from orderone.core.errors import InputError, with_code
from orderone.core.roles import Role
from orderone.observe.inventory import Item, inventory, shapes_of
from orderone.optimizers.table import Algorithm, Eps, record_for
from orderone.planning import adjustments, own_depth
from orderone.planning.adapter_factors import (
    adapters_of_other_rank,
    factors_in_width,
    measured_adapters,
)
from orderone.planning.adjustments import Draft, DraftBlock
from orderone.planning.apply import sizes_now
from orderone.planning.base import Base, is_configuration, sizes_of
from orderone.planning.counterparts import Counterpart, counterparts, stack_of
from orderone.planning.expert_factors import mixtures_of_experts
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.horizon import scaled_betas, times
from orderone.planning.huggingface import other_numbers
from orderone.planning.initial import Initial, measure
from orderone.planning.options import Request
from orderone.planning.origins import Origin
from orderone.planning.plan import Block, Multiplier, Plan, Row, in_groups
from orderone.planning.repetition_factors import Repetition, repeated_keys, repetitions
from orderone.planning.roles.adapter_blocks import AdapterBlock, adapter_blocks
from orderone.planning.roles.adapters import AdapterPart, adapter_parts
from orderone.planning.roles.evidence import Evidence, Widths, declared_layouts, read_overrides
from orderone.planning.roles.experts import ExpertPart, Size, expert_parts, lists_of_experts
from orderone.planning.roles.parallel import parallel_by_shape
from orderone.planning.roles.resolve import (
    ResolvedRole,
    group_of,
    residual_width,
    resolve_roles,
    structural_roles,
)
from orderone.planning.roles.standalone import roles_at_all_sizes
from orderone.planning.settings import Subject
from orderone.planning.start import order_one_sizes, started
from orderone.rules.axes import Factors, Growth, width_factors

# drafts after each step that changes factors, by the name that the plan prints
Stages: TypeAlias = Mapping[str, adjustments.Drafts]
LAST = "gauge"  # the last step


@dataclass(frozen=True)
class _Steps:
    """Drafts after every step, multipliers for the forward pass, and notes."""

    stages: Stages
    multipliers: tuple[Multiplier, ...]
    notes: tuple[str, ...]
    undone: tuple[str, ...]  # those notes that ask for a change of the model's code


def relative_plan(model: nn.Module, base: Base, request: Request, facts: ForwardFacts) -> Plan:
    """Return the plan for `model` relative to `base`."""
    return _Comparison(model, base, request, facts).to_plan()


def other_sizes(
    model: nn.Module, base: Base, request: Request, facts: ForwardFacts
) -> dict[str, set[Size]]:
    """Return numbers of experts, ranks of adapters and repetitions of keys, in base and model."""
    comparison = _Comparison(model, base, request, facts)
    return {
        "expert count": comparison.expert_counts,
        "rank": comparison.ranks,
        "repetition": comparison.query_groups,
    }


@dataclass(frozen=True)
class _Comparison:
    model: nn.Module
    base: Base
    request: Request
    facts: ForwardFacts

    def to_plan(self) -> Plan:
        request = self.request
        facts = self.facts
        drafts = self._drafts()
        subjects = self._subjects(drafts)
        request.check_settings(list(subjects.values()))
        adjusted = self._adjusted(drafts, subjects)
        rows = self._rows(adjusted.stages, subjects)
        self._check_init_scale(rows, subjects)
        settings = replace(request.settings(relative=True), base_sizes=sizes_of(self.base.module))
        if request.init.is_unset:
            settings = replace(settings, init=self.base.init)
        return Plan(
            settings=settings,
            rows=rows,
            headline=self._headline(rows),
            notes=(
                *adjusted.notes,
                *facts.findings,
                *self._numbers(),
                *adjustments.hook_notes(adjusted.multipliers),
                *request.horizon.notes(),
                *request.eps_notes(),
            ),
            undone=adjusted.undone,
            multipliers=adjusted.multipliers,
            probe_summary=facts.note,
            model=self.model,
            planned=sizes_now({name: item.tensor for name, item in self.items.items()}),
            user_class=request.algorithm.user_class,
            user_options=request.algorithm.options,
        )

    def _adjusted(self, drafts: adjustments.Drafts, subjects: Mapping[str, Subject]) -> "_Steps":
        """Change the factors of the rule, one step after the other."""
        request = self.request
        facts = self.facts
        # widths of keys and values are those of the queries
        drafts = repeated_keys(drafts, self.repetitions, replace(request, repetition_rule=None))
        start = started(drafts, subjects, request.init, facts, self.base, self.model)
        repeated = repeated_keys(start.drafts, self.repetitions, request)
        normed = adjustments.weight_norm(repeated, self.model)
        adapted = adapters_of_other_rank(normed, self.adapters, facts, request)
        models = (self.model, self.base.module)
        adapted = measured_adapters(adapted, self.adapter_blocks, models, facts, request)
        own = {**self.adapters, **dict.fromkeys(self._measured)}
        compensated = adjustments.forward_constants(adapted, facts, without=own)
        mixtures = mixtures_of_experts(compensated, facts, request.expert_rule)
        in_depth = self._in_depth(mixtures.drafts)
        scores = adjustments.attention_scores(in_depth.drafts, facts, request.power)
        tied = adjustments.tied_readouts(scores.drafts, facts, request)
        gauge = adjustments.gauge(tied.drafts, request)
        undone = (*scores.notes, *tied.notes)
        bottlenecks = self._bottlenecks(gauge.drafts.values())
        return _Steps(
            stages={
                "width": start.drafts,
                "repetition": repeated,
                "weight norm": normed,
                "rank": adapted,
                "forward code": compensated,
                "experts": mixtures.drafts,
                "depth": in_depth.drafts,
                "attention scores": scores.drafts,
                "tied readout": tied.drafts,
                LAST: gauge.drafts,
            },
            multipliers=adjustments.merged_multipliers(
                (*in_depth.multipliers, *tied.multipliers, *gauge.multipliers)
            ),
            notes=(*start.notes, *mixtures.notes, *in_depth.notes, *undone, *bottlenecks),
            undone=undone,
        )

    def _in_depth(self, drafts: adjustments.Drafts) -> adjustments.Adjusted:
        """Scale with depth by the rule; without one, keep the model's own dependence on depth."""
        if self.request.depth is not None:
            return adjustments.residual_branches(drafts, self.facts, self.request.depth)
        if all(draft.depth == 1 for draft in drafts.values()):
            return adjustments.Adjusted(drafts)
        return own_depth.keep(drafts, self.model, self.base)

    # --- evidence ---------------------------------------------------------------------------------

    @cached_property
    def items(self) -> dict[str, Item]:
        return inventory(self.model)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.model)

    @cached_property
    def counterparts(self) -> dict[str, Counterpart]:
        return counterparts(self._shapes, self.base.shapes, self._parallel)

    @cached_property
    def _parallel(self) -> frozenset[str]:
        """Names of lists whose modules are not layers: as traced, or as shapes tell."""
        if self.facts.pair is not None:
            return self.facts.parallel
        as_layers = counterparts(self._shapes, self.base.shapes)
        heads = parallel_by_shape(self._evidence(as_layers), self.base.shapes)
        return heads | lists_of_experts(self._experts(as_layers))

    @cached_property
    def traced_as(self) -> dict[str, str]:
        """Names of the corresponding tensors of the traced instance, by tensor."""
        return self.facts.traced_as(self._shapes)

    @cached_property
    def tensors(self) -> list[Evidence]:
        """All tensors. Those of adapters that are not read have no role."""
        tensors: list[Evidence] = []
        for evidence in self._all_tensors:
            if evidence.name in self._measured:
                evidence = replace(evidence, override=Role.FIXED)
            tensors.append(evidence)
        return tensors

    @cached_property
    def _all_tensors(self) -> list[Evidence]:
        return self._evidence(self.counterparts)

    def _evidence(self, counterparts: Mapping[str, Counterpart]) -> list[Evidence]:
        overrides = read_overrides(self.request.overrides, list(self.items))
        self._check_dimensions(counterparts)
        experts = self._experts(counterparts)
        tensors: list[Evidence] = []
        for name, item in self.items.items():
            evidence = Evidence(
                item,
                self.base.shapes[counterparts[name].name],
                override=overrides.get(name),
                traced=self.facts.layouts.get(self.traced_as.get(name, ""), ()),
                declared=declared_layouts(item),
                is_output=not set(self.facts.outputs).isdisjoint(item.modules),
                siblings=(1, 1) if name in experts else counterparts[name].siblings,
                generated=self.facts.generated.get(self.traced_as.get(name, "")),
                expert=experts.get(name),
            )
            tensors.append(evidence)
        return tensors

    def _check_dimensions(self, counterparts: Mapping[str, Counterpart]) -> None:
        for name, item in self.items.items():
            base_shape = self.base.shapes[counterparts[name].name]
            if len(base_shape) != len(item.shape):
                message = (
                    f"base: {name} has {len(base_shape)} dimensions in the base and"
                    f" {len(item.shape)} in the model; build the base with the same code"
                )
                raise InputError(message, "other-architecture", argument="base")

    def _experts(self, counterparts: Mapping[str, Counterpart]) -> dict[str, ExpertPart]:
        """Return the place of every tensor that belongs to a mixture of experts."""
        names = {name: counterpart.name for name, counterpart in counterparts.items()}
        declared = [name for name, item in self.items.items() if declared_layouts(item)]
        return expert_parts(
            self._shapes,
            self.base.shapes,
            names,
            declared,
            parallel=self.facts.parallel,
            summed=self.facts.summed_axes(self.traced_as),
            in_scores=self.facts.in_scores(self.traced_as),
        )

    @cached_property
    def widths(self) -> Widths:
        return Widths(e for e in self.tensors if e.name not in self._measured)

    @cached_property
    def adapters(self) -> dict[str, AdapterPart]:
        """Matrices of LoRA, by name."""
        parts = adapter_parts(self._all_tensors)
        return {name: part for name, part in parts.items() if name not in self._measured}

    @cached_property
    def adapter_blocks(self) -> list[AdapterBlock]:
        """Blocks with adapters other than LoRA whose sizes differ from those of the base."""
        if self.base.module is None:
            return []
        names = {name: counterpart.name for name, counterpart in self.counterparts.items()}
        lora = adapter_parts(self._all_tensors)
        return adapter_blocks(self._all_tensors, lora, names, self.model, self.base.module)

    @cached_property
    def _measured(self) -> set[str]:
        """Names of the tensors of these blocks."""
        return {name for block in self.adapter_blocks for name in block.tensors}

    @cached_property
    def repetitions(self) -> dict[str, Repetition]:
        """Repetitions of keys and values, by name."""
        return repetitions(self.tensors)

    # --- rows -------------------------------------------------------------------------------------

    def _drafts(self) -> dict[str, Draft]:
        roles = resolve_roles(self.tensors, self.widths, bool(self.facts.outputs))
        as_traced = [self._as_traced(evidence) for evidence in self.tensors]
        structure = structural_roles(as_traced)
        drafts: dict[str, Draft] = {}
        for evidence in self.tensors:
            name = evidence.name
            algorithm = self._algorithm(evidence, structure[name])
            drafts[name] = self._draft(evidence, roles[name], algorithm)
        for name, part in self.adapters.items():
            if part.growth != 1:
                factors = factors_in_width(drafts[name], part, self.request)
                drafts[name] = replace(drafts[name], factors=factors)
        return drafts

    def _as_traced(self, evidence: Evidence) -> Evidence:
        """Return the evidence with the shape in the traced instance, which is wider than the base.

        At base size a vocabulary may happen to be as large as the width, and the choice of tensors
        for Muon must not depend on that.
        """
        shape = self.facts.shapes.get(self.traced_as.get(evidence.name, ""))
        if shape is None:
            return evidence
        return replace(evidence, item=replace(evidence.item, shape=shape))

    def _algorithm(self, evidence: Evidence, structural_role: Role) -> Algorithm:
        """Return the optimizer of a tensor: Muon leaves some tensors to another optimizer.

        Its iterations are in real numbers, so that it takes no complex matrices.
        """
        assigned = self.request.assigned.get(evidence.name)
        if assigned is not None:
            return assigned
        is_matrix = structural_role == Role.HIDDEN and len(evidence.item.shape) == 2
        is_matrix = is_matrix and not evidence.is_router
        is_hidden = (is_matrix or evidence.is_stack) and not evidence.item.tensor.is_complex()
        return record_for(self.request.algorithm, is_hidden, evidence.item.shape)

    def _draft(self, evidence: Evidence, resolved: ResolvedRole, algorithm: Algorithm) -> Draft:
        name = evidence.name
        if not evidence.item.tensor.requires_grad:
            resolved = ResolvedRole(
                Role.FIXED, Growth(), "frozen (requires_grad=False): not changed"
            )
        counterpart = self.counterparts[name]
        return Draft(
            evidence=evidence,
            resolved=resolved,
            algorithm=algorithm,
            factors=self._factors(evidence, resolved, algorithm),
            base=self.base.initial[counterpart.name],
            base_name=counterpart.name,
            depth=counterpart.depth,
            traced_as=self.traced_as.get(name, name),
            reasons=(resolved.reason,),
        )

    def _factors(self, evidence: Evidence, resolved: ResolvedRole, algorithm: Algorithm) -> Factors:
        """Return the factors of the rule for this role, before adjustments."""
        factors = Factors()
        if resolved.role != Role.FIXED:
            rule = self.request.parameterization(algorithm.law)
            factors = width_factors(rule, resolved.role, resolved.growth, algorithm.law)
            is_one_of_many = evidence.siblings != (1, 1) or evidence.is_stack
            if algorithm.update_law.spectral and is_one_of_many:
                # every one of the parallel matrices is orthogonalized by itself
                alone = self.widths.growth_alone(evidence)
                factors = replace(
                    factors, lr=width_factors(rule, resolved.role, alone, algorithm.law).lr
                )
        interior = bool(self.facts.outputs) and not evidence.is_output
        if resolved.role == Role.READOUT and interior:
            # its output goes on into the network: the gradient of this output is a sum over the
            # width of the next layer, of terms with independent signs
            factors = replace(factors, gradient=resolved.growth.fan_in**-0.5)
        # 1 except for Muon: its step multiplies lr by a function of the shape
        target = algorithm.rate_factor(evidence.item.shape)
        base = algorithm.rate_factor(evidence.base_shape)
        return replace(factors, lr=factors.lr / (target / base))

    def _subjects(self, drafts: adjustments.Drafts) -> dict[str, Subject]:
        """Return the facts about every tensor that the keys of settings refer to."""
        resolved = {name: draft.role for name, draft in drafts.items()}
        at_base: list[Evidence] = []
        for evidence in self.tensors:
            item = replace(evidence.item, shape=evidence.base_shape)
            at_base.append(self._as_traced(replace(evidence, item=item)))
        as_traced = [self._as_traced(evidence) for evidence in self.tensors]
        roles = roles_at_all_sizes(resolved, as_traced, at_base)
        subjects: dict[str, Subject] = {}
        for name, draft in drafts.items():
            item = draft.evidence.item
            subjects[name] = Subject(
                name=name,
                optimizer=draft.algorithm.name,
                roles=roles.get(name, ()),
                trained=draft.trained,
                other_names=item.other_names,
            )
        return subjects

    def _check_init_scale(self, rows: Sequence[Row], subjects: Mapping[str, Subject]) -> None:
        """Raise an InputError if a key of init_scale changes only tensors that start at zero."""
        starts: dict[str, list[Row]] = {}
        for row in rows:
            key = self.request.init_scale.of(subjects[row.name]).key
            if key is not None and row.trained:
                starts.setdefault(key, []).append(row)
        for key, rows_of_key in starts.items():
            if all(row.base_std == 0 for row in rows_of_key):
                message = (
                    f"init_scale: the key {key!r} has no effect, because {rows_of_key[0].name}"
                    " starts at zero; remove the key"
                )
                raise InputError(message, argument="init_scale")

    def _rows(self, stages: Stages, subjects: Mapping[str, Subject]) -> tuple[Row, ...]:
        drafts = stages[LAST]
        roles = {name: draft.role for name, draft in drafts.items()}
        width = residual_width(self.tensors, roles)
        sizes = order_one_sizes(drafts, subjects, self.facts, self.base, self.model)
        rows: list[Row] = []
        for draft in drafts.values():
            row = self._row(draft, subjects[draft.name], width)
            rows.append(replace(row, origins=self._origins(row, subjects[draft.name], stages)))
        decayed = self.request.decayed(tuple(rows))
        return tuple(replace(row, order_one=sizes.get(row.name)) for row in decayed)

    def _row(self, draft: Draft, subject: Subject, width: int | None) -> Row:
        request = self.request
        item = draft.evidence.item
        factors = draft.factors
        algorithm = draft.algorithm
        initial = draft.base
        if not draft.trained and not item.tensor.is_meta:
            initial = measure(item.tensor)  # frozen: the size stays
        init_scale = request.init_scale_of(subject, len(item.shape))
        constant = None
        if initial.constant is not None:
            constant = initial.constant * factors.std * init_scale * draft.own_depth
        horizon = self._horizon(draft)
        return Row(
            name=item.name,
            role=draft.role,
            group=group_of(draft.evidence, draft.role, width),
            shape=item.shape,
            base_shape=draft.evidence.base_shape,
            growth=draft.resolved.growth,
            depth=draft.depth,
            multiplier=draft.multiplier,
            carried_multiplier=draft.carried_multiplier,
            init_std=initial.rms * factors.std * init_scale * draft.own_depth,
            lr=request.lr_of(algorithm, subject) * factors.lr * horizon.lr,
            weight_decay=self._weight_decay(draft, subject, factors),
            eps=self._eps(draft, factors, horizon),
            reason="; ".join((*draft.reasons, *request.settings_reason(subject))),
            optimizer=algorithm.name,
            uses=item.modules,
            constant=constant,
            base_name=draft.base_name,
            base_std=draft.base.rms,
            trained=draft.trained,
            init_scale=init_scale,
            factors=factors,
            own_depth=draft.own_depth,
            draw=draft.draw,
            writes_matrix=draft.resolved.writes_matrix,
            blocks=tuple(self._block(block, draft, subject, initial) for block in draft.blocks),
            convention=algorithm.convention,
            horizon=horizon,
            betas=self._betas(draft, horizon),
        )

    def _horizon(self, draft: Draft) -> Factors:
        """Return the product of the factors of batch size, tokens and further axes."""
        horizon = Factors()
        by_axis = self.request.horizon_factors(draft.algorithm, draft.role, draft.trained)
        for factors in by_axis.values():
            horizon = horizon * factors
        return horizon

    def _eps(self, draft: Draft, factors: Factors, horizon: Factors) -> Eps:
        eps = self.request.scaled_eps(draft.algorithm, draft.evidence, factors)
        return times(eps, horizon.eps**draft.algorithm.eps_power)

    def _weight_decay(self, draft: Draft, subject: Subject, factors: Factors) -> float:
        request = self.request
        base = request.weight_decay_of(draft.algorithm, subject)
        grown = request.decay_factor(draft.algorithm, factors, draft.role, draft.resolved.growth)
        return base * grown * self._horizon(draft).weight_decay

    def _betas(self, draft: Draft, horizon: Factors) -> tuple[float, ...] | None:
        """Return the betas of a tensor; None if they are those of the base."""
        factors = (draft.factors * horizon).betas
        if factors == (1.0, 1.0):
            return None
        return scaled_betas(draft.algorithm, draft.algorithm.betas, factors)

    def _origins(self, row: Row, subject: Subject, stages: Stages) -> tuple[Origin, ...]:
        """Return the factors of a row by axis, adjustment and setting of the user."""
        if not row.trained:
            return ()
        draft = stages[LAST][row.name]
        origins = [self._tuned(draft.algorithm, subject, row.init_scale)]
        before = Origin("base")
        earlier: Draft | None = None
        for name, drafts in stages.items():
            if drafts[row.name] is earlier:
                continue  # this step changes nothing here
            earlier = drafts[row.name]
            after = self._cumulative(earlier)
            origins.append(
                Origin(
                    name,
                    init=after.init / before.init,
                    lr=after.lr / before.lr,
                    weight_decay=after.weight_decay / before.weight_decay,
                    eps=after.eps / before.eps,
                    betas=_ratio(after.betas, before.betas),
                    multiplier=after.multiplier / before.multiplier,
                )
            )
            before = after
        by_axis = self.request.horizon_factors(draft.algorithm, draft.role, draft.trained)
        for name, factors in by_axis.items():
            origins.append(
                Origin(
                    name,
                    lr=factors.lr,
                    weight_decay=factors.weight_decay,
                    eps=factors.eps**draft.algorithm.eps_power,
                    betas=factors.betas,
                )
            )
        return tuple(origin for origin in origins if not origin.is_one)

    def _tuned(self, algorithm: Algorithm, subject: Subject, init_scale: float) -> Origin:
        """Return the user's values of this tensor over the defaults: the same at every size."""
        request = self.request
        keys = dict.fromkeys(
            setting.of(subject).key
            for setting in (request.lr, request.weight_decay, request.init_scale)
        )
        named = ", ".join(repr(key) for key in keys if key is not None)
        lr = request.lr.for_optimizer(algorithm.name) or algorithm.lr
        decay = request.weight_decay.for_optimizer(algorithm.name)
        if decay is None:
            decay = algorithm.weight_decay
        own_decay = request.weight_decay_of(algorithm, subject)
        return Origin(
            f"tuned for {named}" if named else "init_scale",
            init=init_scale,
            lr=request.lr_of(algorithm, subject) / lr if lr else 1.0,
            weight_decay=own_decay / decay if decay and own_decay else 1.0,
            tuned=True,
        )

    def _cumulative(self, draft: Draft) -> Origin:
        """Return the factors of a draft, relative to the base."""
        request = self.request
        algorithm = draft.algorithm
        factors = draft.factors
        growth = draft.resolved.growth
        base_eps = _size(request.eps_of(algorithm))
        eps = _size(request.scaled_eps(algorithm, draft.evidence, factors))
        return Origin(
            "",
            init=factors.std * draft.own_depth,
            lr=factors.lr,
            weight_decay=request.decay_factor(algorithm, factors, draft.role, growth),
            eps=eps / base_eps if base_eps else 1.0,
            betas=factors.betas,
            multiplier=draft.multiplier,
        )

    def _block(self, block: DraftBlock, draft: Draft, subject: Subject, initial: Initial) -> Block:
        """Return the settings of rows that have factors of their own."""
        request = self.request
        algorithm = draft.algorithm
        scale = request.init_scale_of(subject, len(draft.evidence.item.shape)) * draft.own_depth
        horizon = self._horizon(draft)
        factors = block.factors(draft.factors, draft.update_law)
        constant = None
        if initial.constant is not None:
            constant = initial.constant * factors.std * scale
        return Block(
            kind=block.kind,
            axis=block.entries.axis,
            size=block.entries.size,
            ranges=block.entries.ranges,
            init_std=initial.rms * factors.std * scale,
            constant=constant,
            lr=request.lr_of(algorithm, subject) * factors.lr * horizon.lr,
            weight_decay=self._weight_decay(draft, subject, factors),
            eps=self._eps(draft, factors, horizon),
            factors=factors,
        )

    # --- headline and notes -----------------------------------------------------------------------

    def _headline(self, rows: Sequence[Row]) -> str:
        title = f"{self.request.name} for {self.request.algorithm.label}"
        count = in_groups(rows)
        depths: list[float] = []
        for counterpart in self.counterparts.values():
            if counterpart.depth != 1:
                depths.append(counterpart.depth)
        if depths:
            others = [f"depth x{max(depths):.4g}"]
        else:
            others = []
        others += self._more_of("rank", self.ranks)
        others += self._more_of("experts", self.expert_counts)
        others += self._more_of("queries per key", self.query_groups)
        for name, (base, target) in self.request.horizon.sizes.items():
            if base != target:
                others.append(f"{name} x{target / base:.4g}")
        sizes = sorted(self.widths.passed_on - self._ranks, key=lambda size: size[0])
        if sizes:
            ratios: set[float] = set()
            widths: list[str] = []
            for base, target in sizes:
                ratios.add(target / base)
                widths.append(f"{base} -> {target}")
            grown = ", ".join(f"x{ratio:.4g}" for ratio in sorted(ratios))
            growth = ", ".join([f"width {grown} ({', '.join(widths)})", *others])
            return f"{title}: {growth}; {count}"
        differs = [*others, *sorted(self._other_sizes())] or self._settings_that_differ()
        if not differs and self.request.is_uniform:
            return (
                f"{title}: the target equals its base: every factor is 1, and training is"
                f" unchanged; {count}"
            )
        if not differs:
            return f"{title}: the target equals its base: every factor of the rule is 1; {count}"
        differences = " and ".join(differs)
        return f"{title}: no width grows; base and target differ in {differences}; {count}"

    @cached_property
    def _ranks(self) -> set[Size]:
        """Ranks of adapters that are nothing else: no other tensor has this size."""
        others: set[Size] = set()
        for evidence in self.tensors:
            if evidence.name not in self.adapters and evidence.name not in self._measured:
                others.update(evidence.sizes)
        return self.ranks - others

    @property
    def query_groups(self) -> set[Size]:
        """Whole numbers of queries that share a key."""
        groups: set[Size] = set()
        for repetition in self.repetitions.values():
            base, target = repetition.sizes
            if base == int(base) and target == int(target):
                groups.add((int(base), int(target)))
        return groups

    @property
    def ranks(self) -> set[Size]:
        """Ranks of LoRA, and sizes of other adapters."""
        ranks = {part.rank for part in self.adapters.values()}
        return ranks.union(*(block.sizes for block in self.adapter_blocks))

    @property
    def expert_counts(self) -> set[Size]:
        parts = [evidence.expert for evidence in self.tensors]
        return {part.count for part in parts if part is not None}

    def _more_of(self, word: str, sizes: Iterable[Size]) -> list[str]:
        """Return `rank x8 (4 -> 32)` for the sizes that differ."""
        texts: list[str] = []
        for base, target in sorted(sizes):
            if base != target:
                texts.append(f"{word} x{target / base:.4g} ({base} -> {target})")
        return texts

    def _other_sizes(self) -> set[str]:
        """Return words for the sizes that differ and are not widths."""
        words: set[str] = set()
        for evidence in self.tensors:
            for size in evidence.sizes:
                if size[0] != size[1] and size not in self._ranks:
                    words.add(self.widths.word_for(size))
        return words

    def _settings_that_differ(self) -> list[str]:
        """Return keys of the Hugging Face configurations that differ.

        A number of layers that share their tensors appears nowhere else.
        """
        ours = sizes_of(self.model) or {}
        theirs = sizes_of(self.base.module) or {}
        return [key for key in theirs if ours.get(key) != theirs[key]]

    def _numbers(self) -> list[str]:
        """Return a note if numbers other than sizes differ between the two configurations."""
        ours = getattr(self.model, "config", None)
        theirs = getattr(self.base.module, "config", None)
        if not is_configuration(ours) or not is_configuration(theirs):
            return []
        differing: list[str] = []
        for key in other_numbers(ours, theirs):
            differing.append(f"{key} ({getattr(theirs, key, None)} -> {getattr(ours, key, None)})")
        if not differing:
            return []
        note = (
            f"base and target also differ in {', '.join(differing)}, which the plan ignores; let"
            " them differ only in sizes"
        )
        return [with_code(note, "other-settings-differ")]

    def _bottlenecks(self, drafts: Iterable[Draft]) -> list[str]:
        """Return a note if the output of a readout goes on into the network."""
        stacks: dict[str, None] = {}
        for draft in drafts:
            if draft.resolved.bottleneck and draft.name not in self.adapters:
                stacks[stack_of(draft.name)] = None
        if not stacks:
            return []
        note = (
            f"{', '.join(stacks)}: treated as a readout, because fan-in grows and fan-out does not."
            " If its fan-out is a width, make it smaller in the base"
        )
        return [with_code(note, "bottleneck-size")]


def _size(eps: Eps) -> float:
    """Return eps as one number: the second of a pair, 0 if there is none."""
    if isinstance(eps, tuple):
        return eps[1]
    return eps or 0.0


def _ratio(after: tuple[float, float], before: tuple[float, float]) -> tuple[float, float]:
    return (after[0] / before[0], after[1] / before[1])
