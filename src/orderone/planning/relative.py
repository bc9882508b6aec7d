"""Relative mode: a plan from every tensor and its counterpart in the base.

At base size every factor is 1.

The path of a learning rate:

    roles/resolve.py             role of the tensor, and the growth of its fan-in and fan-out
    request.py                   `Request.parameterization`: the rule for this update law
    rules/parameterizations.py   `get`: a and b of the rule; c comes from
                                 theory/exponents/solver.py
    rules/axes/width.py          `width_factors`: factors of this role, growth and update law
    `_factors`                   divides by the factor that torch.optim.Muon applies to lr
    `_adjusted`                  applies all other steps in their order, and names the function of
                                 each; `Row.factors` has the product, and `Row.origins` every step
    request.py                   `Request.lr_of`: the user's learning rate of this tensor, for the
                                 base
    rows.py                      `make_row`: the product of the user's learning rate and the factors
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from torch import nn

from orderone.core.errors import InputError
from orderone.core.roles import MATRIX_ROLES, Role
from orderone.optimizers.table import Algorithm, record_for
from orderone.planning import adjustments, own_depth
from orderone.planning.adapter_factors import (
    adapters_of_other_rank,
    factors_in_width,
    measured_adapters,
)
from orderone.planning.adjustments import Draft
from orderone.planning.apply import sizes_now
from orderone.planning.base import Base, sizes_of
from orderone.planning.comparison import Comparison
from orderone.planning.expert_factors import mixtures_of_experts
from orderone.planning.forward_facts import ForwardFacts
from orderone.planning.headline import (
    bottleneck_notes,
    headline,
    input_notes,
    number_notes,
    structure_notes,
)
from orderone.planning.initial import Initial
from orderone.planning.plan import Multiplier, Plan
from orderone.planning.plan_row import Row
from orderone.planning.repetition_factors import repeated_keys
from orderone.planning.request import Request
from orderone.planning.roles.evidence import Evidence
from orderone.planning.roles.experts import Size
from orderone.planning.roles.resolve import AmbiguousRole, ResolvedRole, resolve_roles
from orderone.planning.roles.standalone import decided, roles_at_all_sizes
from orderone.planning.roles.structure import Candidates, residual_width, structural_candidates
from orderone.planning.rows import LAST, Stages, make_row, origins
from orderone.planning.settings import Subject
from orderone.planning.start import order_one_sizes, started
from orderone.rules.axes import Factors, Growth, width_factors


@dataclass(frozen=True)
class _Steps:
    """Drafts after every step, multipliers for the forward pass, and notes."""

    stages: Stages
    multipliers: tuple[Multiplier, ...]
    notes: tuple[str, ...]
    undone: tuple[str, ...]  # those notes that ask for a change of the model's code


def relative_plan(
    model: nn.Module, base: Base, request: Request, facts: ForwardFacts, is_new: bool = False
) -> Plan:
    """Return the plan for `model` relative to `base`.

    The plan of a model that `is_new`, and is initialized by the plan at once, does not record its
    present sizes: they would only show whether it has been trained since.
    """
    pair = Comparison(model, base, request, facts)
    drafts = _drafts(pair)
    subjects = _subjects(pair, drafts)
    request.check_settings(list(subjects.values()))
    adjusted = _adjusted(pair, drafts, subjects)
    rows = _rows(pair, adjusted.stages, subjects)
    _check_init_scale(pair, rows, subjects)
    planned: Mapping[str, Initial | None] = {}
    if not is_new:
        planned = sizes_now({name: item.tensor for name, item in pair.items.items()})
    settings = replace(request.settings(relative=True), base_sizes=sizes_of(base.module))
    if request.init.is_unset:
        settings = replace(settings, init=base.init)
    return Plan(
        settings=settings,
        rows=rows,
        headline=headline(pair, rows),
        notes=(
            *adjusted.notes,
            *facts.findings,
            *number_notes(pair),
            *structure_notes(pair, drafts.values()),
            *adjustments.hook_notes(adjusted.multipliers),
            *request.horizon.notes(),
            *request.eps_notes(),
        ),
        undone=adjusted.undone,
        multipliers=adjusted.multipliers,
        probe_summary=facts.note,
        model=model,
        planned=planned,
        user_class=request.algorithm.user_class,
        user_options=request.algorithm.options,
    )


def other_sizes(
    model: nn.Module, base: Base, request: Request, facts: ForwardFacts
) -> dict[str, set[Size]]:
    """Return numbers of experts, ranks of adapters and repetitions of keys, in base and model."""
    pair = Comparison(model, base, request, facts)
    return {
        "expert count": pair.expert_counts,
        "rank": pair.ranks,
        "repetition": pair.query_groups,
    }


def _with_adapters(pair: Comparison, drafts: adjustments.Drafts) -> adjustments.Drafts:
    """Change the factors of adapters whose rank or size differs from that of the base."""
    drafts = adapters_of_other_rank(drafts, pair.adapters, pair.facts, pair.request)
    models = (pair.model, pair.base.module)
    return measured_adapters(drafts, pair.adapter_blocks, models, pair.facts, pair.request)


def _adjusted(
    pair: Comparison, drafts: adjustments.Drafts, subjects: Mapping[str, Subject]
) -> _Steps:
    """Change the factors of the rule, one step after the other."""
    request = pair.request
    facts = pair.facts
    # widths of keys and values are those of the queries
    drafts = repeated_keys(drafts, pair.repetitions, replace(request, repetition_rule=None))
    start = started(drafts, subjects, request.init, facts, pair.base, pair.model)
    repeated = repeated_keys(start.drafts, pair.repetitions, request)
    normed = adjustments.weight_norm(repeated, pair.model)
    adapted = _with_adapters(pair, normed)
    own = {**pair.adapters, **dict.fromkeys(pair.measured_names)}
    compensated = adjustments.forward_constants(adapted, facts, without=own)
    mixtures = mixtures_of_experts(compensated, facts, request.expert_rule)
    in_depth = _in_depth(pair, mixtures.drafts)
    scores = adjustments.attention_scores(in_depth.drafts, facts, request.power)
    tied = adjustments.tied_readouts(scores.drafts, facts, request)
    gauge = adjustments.gauge(tied.drafts, facts, request)
    undone = (*scores.notes, *tied.notes)
    unscaled = bottleneck_notes(pair, gauge.drafts.values())
    unscaled += input_notes(pair, gauge.drafts.values())
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
        notes=(*start.notes, *mixtures.notes, *in_depth.notes, *undone, *unscaled),
        undone=undone,
    )


def _in_depth(pair: Comparison, drafts: adjustments.Drafts) -> adjustments.Adjusted:
    """Scale with depth by the rule; without one, keep the model's own dependence on depth."""
    if pair.request.depth is not None:
        return adjustments.residual_branches(drafts, pair.facts, pair.request.depth)
    if all(draft.depth == 1 for draft in drafts.values()):
        return adjustments.Adjusted(drafts)
    return own_depth.keep(drafts, pair.model, pair.base)


def _drafts(pair: Comparison) -> dict[str, Draft]:
    roles = resolve_roles(pair.tensors, pair.widths, bool(pair.facts.outputs))
    as_traced = [pair.as_traced(evidence) for evidence in pair.tensors]
    structure = structural_candidates(as_traced)
    known = _roles_that_grow(pair, {name: resolved.role for name, resolved in roles.items()})
    drafts: dict[str, Draft] = {}
    for evidence in pair.tensors:
        name = evidence.name
        candidates = decided(structure[name], known.get(name))
        algorithm = _algorithm(pair, evidence, candidates)
        drafts[name] = _draft(pair, evidence, roles[name], algorithm)
    for name, part in pair.adapters.items():
        if part.growth != 1:
            factors = factors_in_width(drafts[name], part, pair.request)
            drafts[name] = replace(drafts[name], factors=factors)
    return drafts


def _roles_that_grow(pair: Comparison, resolved: Mapping[str, Role]) -> dict[str, Role]:
    """Return the roles of tensors with a dimension that grows, from the base or as traced."""
    grown = {name: role for name, role in resolved.items() if role != Role.FIXED}
    return pair.traced_roles | grown


def _algorithm(pair: Comparison, evidence: Evidence, candidates: Candidates) -> Algorithm:
    """Return the optimizer of a tensor: Muon leaves some tensors to another optimizer.

    Its iterations are in real numbers, so that it takes no complex matrices.
    """
    assigned = pair.request.assigned.get(evidence.name)
    if assigned is not None:
        return assigned
    if evidence.override in MATRIX_ROLES:
        candidates = (Role(evidence.override),)
    algorithms: list[Algorithm] = []
    for role in candidates:
        is_matrix = role == Role.HIDDEN and len(evidence.item.shape) == 2
        is_matrix = is_matrix and not evidence.is_router
        is_hidden = (is_matrix or evidence.is_stack) and not evidence.item.tensor.is_complex()
        algorithm = record_for(pair.request.algorithm, is_hidden, evidence.item.shape)
        if algorithm not in algorithms:
            algorithms.append(algorithm)
    if len(algorithms) > 1:
        _raise_ambiguous(evidence, [algorithm.name for algorithm in algorithms])
    return algorithms[0]


def _raise_ambiguous(evidence: Evidence, names: Sequence[str]) -> NoReturn:
    message = (
        f"optimizer: {evidence.name} {evidence.item.shape} makes the output of the model, and its"
        " outputs are as many as an inner width. One size does not show whether they are a width:"
        f" {names[0]} if it is a readout, {names[1]} if it is hidden. Choose one with"
        f' plan(..., overrides={{"{evidence.name}": role}})'
    )
    raise AmbiguousRole(message, "ambiguous-role", argument="overrides")


def _draft(
    pair: Comparison, evidence: Evidence, resolved: ResolvedRole, algorithm: Algorithm
) -> Draft:
    name = evidence.name
    if not evidence.item.tensor.requires_grad:
        resolved = ResolvedRole(Role.FIXED, Growth(), "frozen (requires_grad=False): not changed")
    counterpart = pair.counterparts[name]
    return Draft(
        evidence=evidence,
        resolved=resolved,
        algorithm=algorithm,
        factors=_factors(pair, evidence, resolved, algorithm),
        base=pair.base.initial[counterpart.name],
        base_name=counterpart.name,
        depth=counterpart.depth,
        traced_as=pair.traced_as.get(name, name),
        reasons=(resolved.reason,),
    )


def _factors(
    pair: Comparison, evidence: Evidence, resolved: ResolvedRole, algorithm: Algorithm
) -> Factors:
    """Return the factors of the rule for this role, before adjustments."""
    factors = Factors()
    if resolved.role != Role.FIXED:
        rule = pair.request.parameterization(algorithm.law)
        factors = width_factors(rule, resolved.role, resolved.growth, algorithm.law)
        is_one_of_many = evidence.siblings != (1, 1) or evidence.is_stack
        if algorithm.update_law.spectral and is_one_of_many:
            # every one of the parallel matrices is orthogonalized by itself
            alone = pair.widths.growth_alone(evidence)
            factors = replace(
                factors, lr=width_factors(rule, resolved.role, alone, algorithm.law).lr
            )
    interior = bool(pair.facts.outputs) and not evidence.is_output
    if resolved.role == Role.READOUT and interior:
        # its output goes on into the network: the gradient of this output is a sum over the
        # width of the next layer, of terms with independent signs
        factors = replace(factors, gradient=resolved.growth.fan_in**-0.5)
    # 1 except for Muon: its step multiplies lr by a function of the shape
    target = algorithm.rate_factor(evidence.item.shape)
    base = algorithm.rate_factor(evidence.base_shape)
    return replace(factors, lr=factors.lr / (target / base))


def _subjects(pair: Comparison, drafts: adjustments.Drafts) -> dict[str, Subject]:
    """Return the facts about every tensor that the keys of settings refer to."""
    known = _roles_that_grow(pair, {name: draft.role for name, draft in drafts.items()})
    at_base: list[Evidence] = []
    for evidence in pair.tensors:
        item = replace(evidence.item, shape=evidence.base_shape)
        at_base.append(pair.as_traced(replace(evidence, item=item)))
    as_traced = [pair.as_traced(evidence) for evidence in pair.tensors]
    roles = roles_at_all_sizes(known, as_traced, at_base)
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


def _check_init_scale(
    pair: Comparison, rows: Sequence[Row], subjects: Mapping[str, Subject]
) -> None:
    """Raise an InputError if a key of init_scale changes only tensors that start at zero."""
    starts: dict[str, list[Row]] = {}
    for row in rows:
        key = pair.request.init_scale.of(subjects[row.name]).key
        if key is not None and row.trained:
            starts.setdefault(key, []).append(row)
    for key, rows_of_key in starts.items():
        if all(row.base_std == 0 for row in rows_of_key):
            message = (
                f"init_scale: the key {key!r} has no effect, because {rows_of_key[0].name}"
                " starts at zero; remove the key"
            )
            raise InputError(message, argument="init_scale")


def _rows(pair: Comparison, stages: Stages, subjects: Mapping[str, Subject]) -> tuple[Row, ...]:
    drafts = stages[LAST]
    roles = {name: draft.role for name, draft in drafts.items()}
    width = residual_width(pair.tensors, roles)
    sizes = order_one_sizes(drafts, subjects, pair.facts, pair.base, pair.model)
    rows: list[Row] = []
    for draft in drafts.values():
        row = make_row(pair.request, draft, subjects[draft.name], width)
        rows.append(replace(row, origins=origins(pair.request, row, subjects[draft.name], stages)))
    decayed = pair.request.decayed(tuple(rows))
    return tuple(replace(row, order_one=sizes.get(row.name)) for row in decayed)
