"""Absolute mode (base="absolute"): the papers' power laws in the dimensions themselves, with
constants C and Lambda of order one.

    initial std      sqrt(C_G) times the rule's power
    learning rate    lr Lambda_G times the rule's power

Matrices and lookups are initialized by the law; biases and gains keep their initial constants. S0
is "Scale-Invariant Parameterizations", S2 is "Effective Theory of Transformers at Initialization".
For the strategies of S2 the powers are those of its groups (`theory.scaling`); for other rules they
are the exponents of S0, with fan_in^-1/2 for a dense embedding, whose input is not one-hot. C and
Lambda may name a role, a group of S2, or one matrix of its group QKVU. A readout that shares its
tensor with the embedding gets a multiplier: N_rescale, S2 (1.24).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from orderone.core.errors import InputError, with_code
from orderone.core.roles import Role
from orderone.observe.inventory import Item, Place, inventory, unwrap
from orderone.optimizers.table import Algorithm, record_for
from orderone.planning.adjustments import hook_notes
from orderone.planning.apply import sizes_now
from orderone.planning.constant_overrides import OrderOne
from orderone.planning.constants import Constants
from orderone.planning.forward_facts import output_modules
from orderone.planning.initial import Initial, measure
from orderone.planning.param_groups import in_groups
from orderone.planning.plan import Multiplier, Plan
from orderone.planning.plan_row import Row
from orderone.planning.request import Request
from orderone.planning.roles.evidence import (
    OVERRIDES,
    Evidence,
    declared_layouts,
    read_overrides,
)
from orderone.planning.roles.resolve import AmbiguousRole
from orderone.planning.roles.standalone import (
    Streams,
    groups_of,
    named_layouts,
    readout_places,
    standalone_roles,
    streams_of,
    with_parts,
)
from orderone.planning.roles.structure import output_in_doubt
from orderone.planning.settings import Subject
from orderone.rules.axes import (
    INDEPENDENT,
    PROPORTIONAL,
    Factors,
    Growth,
    tied_multiplier,
    width_factors,
)
from orderone.theory.exponents.updates import update_law
from orderone.theory.scaling import GROUPS, group_rate, is_strategy

STRATEGY_LAWS = ("adamw", "adam", "sign", "sgd")  # laws that the effective theory has rates for


def absolute_plan(
    model: nn.Module, request: Request, order_one: OrderOne, constants: Constants
) -> Plan:
    """Return the plan for `model` without a base."""
    _check_options(request)
    items = inventory(model)
    tensors, roles = _resolved(model, items, request)
    groups = groups_of(tensors, roles)
    streams = streams_of(tensors, roles)
    order_one.check(groups)
    readouts: list[tuple[Item, Sequence[Place]]] = []
    for evidence in tensors:
        readouts.append((evidence.item, readout_places(evidence, roles[evidence.name])))
    constants = constants.of_heads(unwrap(model), readouts)
    subjects = [_subject(evidence, roles[evidence.name], request) for evidence in tensors]
    request.check_settings(subjects)
    row_list: list[Row] = []
    for evidence, subject in zip(tensors, subjects, strict=True):
        role = roles[evidence.name]
        group = groups[evidence.name]
        row_list.append(
            _row(evidence, role, group, subject, request, order_one, constants, streams)
        )
    rows = request.decayed(row_list)
    headline = (
        f"{request.name} for {request.algorithm.label}, absolute: powers of the dimensions of each"
        f" tensor; {in_groups(rows)}"
    )
    multipliers = _tied_readouts(tensors, rows)
    return Plan(
        settings=request.settings(relative=False),
        rows=rows,
        headline=headline,
        notes=(*_doubt_notes(tensors), *hook_notes(multipliers), *request.eps_notes()),
        multipliers=multipliers,
        probe_summary=constants.note,
        model=unwrap(model),
        planned=sizes_now({name: item.tensor for name, item in items.items()}),
        user_class=request.algorithm.user_class,
        user_options=request.algorithm.options,
    )


def _doubt_notes(tensors: Sequence[Evidence]) -> list[str]:
    """Return a note if the last matrix counts as hidden only because of its number of outputs."""
    last = output_in_doubt(tensors)
    if last is None:
        return []
    note = (
        f"{last.name} {last.item.shape} counts as hidden, because its outputs are as many as an"
        " inner width; if it makes the output of the model, set its role:"
        f' plan(..., overrides={{"{last.name}": "readout"}})'
    )
    return [with_code(note, "guessed-roles")]


def _check_options(request: Request) -> None:
    """Raise an InputError for options that describe what changes between a base and the model."""
    if request.gauge != "folded" or request.depth is not None:
        message = (
            "base: gauge and depth describe what changes between a base and the model, and this"
            " plan is absolute; pass a base, or leave gauge and depth out"
        )
        raise InputError(message, "needs-base", argument="base")
    if not request.horizon.is_empty or request.decay not in (INDEPENDENT, PROPORTIONAL):
        message = (
            "base: batch, tokens, further axes and decay='timescale', 'sqrt' or 'inverse-width'"
            " describe what changes between a base and the model, and this plan is absolute; pass a"
            " base, or leave them out"
        )
        raise InputError(message, "needs-base", argument="base")
    if not request.init.keeps_all:
        message = (
            "init: without a base, the rule itself sets the initial sizes; pass a base, or use the"
            " constants C=... and init_scale"
        )
        raise InputError(message, "absolute-mode", argument="init")


def _resolved(
    model: nn.Module, items: Mapping[str, Item], request: Request
) -> tuple[list[Evidence], dict[str, Role]]:
    """Collect the evidence about every tensor, and resolve the roles."""
    outputs = output_modules(model)
    overrides = read_overrides(request.overrides, list(items))
    tensors: list[Evidence] = []
    for name, item in items.items():
        evidence = Evidence(
            item,
            item.shape,
            override=overrides.get(name),
            declared=declared_layouts(item),
            named=named_layouts(item),
            is_output=not set(outputs).isdisjoint(item.modules),
        )
        tensors.append(evidence)
    tensors = with_parts(tensors)
    roles = standalone_roles(tensors)
    for evidence in tensors:
        _must_be_known(evidence)
    one_matrix = (Role.EMBEDDING, Role.READOUT, Role.FIXED)
    resolved: list[Evidence] = []
    for evidence in tensors:
        if roles[evidence.name] in one_matrix:
            evidence = replace(evidence, part=None)
        resolved.append(evidence)
    return resolved, roles


def _must_be_known(evidence: Evidence) -> None:
    """Raise an InputError for a tensor of several dimensions with unknown layout."""
    item = evidence.item
    dimensions = sum(size > 1 for size in item.shape)
    if evidence.layouts or evidence.override is not None or dimensions < 2:
        return
    message = (
        f"{item.name} {item.shape} in {item.places[0].owner}: without a base, it is unknown which"
        f' dimension is its fan-in. Set its role with plan(..., overrides={{"{item.name}": role}}),'
        f" role one of {', '.join(OVERRIDES)}, or register the module type with orderone.register"
    )
    raise AmbiguousRole(message, "ambiguous-role", argument="overrides")


def _subject(evidence: Evidence, role: Role, request: Request) -> Subject:
    return Subject(
        name=evidence.name,
        optimizer=_algorithm(evidence, role, request).name,
        roles=(role,),
        trained=evidence.item.tensor.requires_grad,
        other_names=evidence.item.other_names,
    )


def _row(
    evidence: Evidence,
    role: Role,
    group: str,
    subject: Subject,
    request: Request,
    order_one: OrderOne,
    constants: Constants,
    streams: Streams,
) -> Row:
    algorithm = _algorithm(evidence, role, request)
    item = evidence.item
    present, as_readout = _forward_powers(evidence, role, constants)
    factors = _factors_beside(present, evidence, role, group, request, algorithm, streams)
    rate = order_one.rate(item.name, group, role)
    init_scale = request.init_scale_of(subject, len(item.shape))
    start = _start(item, role, order_one.variance(item.name, group, role) ** 0.5 * factors.std)
    constant = None
    if start.constant is not None:
        constant = start.constant * init_scale
    multiplier = _multiplier(evidence, role, request, algorithm, present / as_readout)
    decay_factors = replace(factors, lr=rate * factors.lr)
    decay = request.decay_factor(algorithm, decay_factors, role, Growth())
    reason = _reason(evidence, role, group, present, multiplier, start.drawn)
    return Row(
        name=item.name,
        role=role,
        group=group,
        shape=item.shape,
        base_shape=None,
        growth=Growth(),
        depth=1.0,
        multiplier=1.0 if multiplier is None else multiplier,
        init_std=start.std * init_scale,
        lr=request.lr_of(algorithm, subject) * rate * factors.lr,
        weight_decay=request.weight_decay_of(algorithm, subject) * decay,
        eps=request.scaled_eps(algorithm, evidence, factors),
        reason="; ".join((reason, *request.settings_reason(subject))),
        optimizer=algorithm.name,
        uses=item.modules,
        constant=constant,
        base_name=None,
        base_std=None,
        init_scale=init_scale,
        factors=factors,
        convention=algorithm.convention,
    )


@dataclass(frozen=True)
class _Start:
    """Initial size of a tensor, before `init_scale`."""

    std: float
    constant: float | None  # the value, if all entries are equal and stay as they are
    drawn: bool  # by the rule


def _start(item: Item, role: Role, std: float) -> _Start:
    """Return the initial size of a tensor; `std` is that of the rule for matrices.

    Matrices of equal entries keep them, unless they are on the meta device and have none.
    """
    is_matrix = role not in (Role.VECTOR, Role.FIXED)
    initial = Initial(0.0, 0.0)
    if not item.tensor.is_meta:
        initial = measure(item.tensor)
    if is_matrix and (item.tensor.is_meta or initial.constant is None):
        return _Start(std, None, drawn=True)
    return _Start(initial.rms, initial.constant, drawn=False)


def _forward_powers(evidence: Evidence, role: Role, constants: Constants) -> tuple[float, float]:
    """Return the powers of the width that the forward code multiplies by.

    The first is for the embedding or readout, the second for the readout of a tied tensor.
    """
    name = evidence.item.name
    into, out = evidence.fans
    if role == "readout":
        return constants.power(name, "matrix", into), 1.0
    if role != "embedding" or "lookup" not in evidence.kinds:
        return 1.0, 1.0
    return constants.power(name, "lookup", out), constants.power(name, "matrix", out)


def _multiplier(
    evidence: Evidence, role: Role, request: Request, algorithm: Algorithm, compensation: float
) -> float | None:
    """Return the multiplier of a tied readout; None for any other tensor."""
    if role == "readout" or not readout_places(evidence, role):
        return None
    rule = request.parameterization(algorithm.law)
    needed = tied_multiplier(rule, float(evidence.fans[1]), algorithm.law) * compensation
    if abs(needed - 1) > 1e-6:
        return needed
    return 1.0


def _reason(
    evidence: Evidence,
    role: Role,
    group: str,
    present: float,
    multiplier: float | None,
    drawn: bool,
) -> str:
    into, out = evidence.fans
    sizes = f"width {out}"
    if role in ("hidden", "readout") or into > 1:
        sizes = f"fan-in {into}, fan-out {out}"
    parts = [f"{group}: {sizes}"]
    if present != 1:
        parts.append(f"the forward code already multiplies by {present:.4g}")
    if multiplier is not None:
        parts.append(f"as readout, its input is multiplied by {multiplier:.4g}")
    if not drawn:
        parts.append("initial values of the model")
    return "; ".join(parts)


def _tied_readouts(tensors: Sequence[Evidence], rows: Sequence[Row]) -> tuple[Multiplier, ...]:
    multipliers: list[Multiplier] = []
    reason = "readout tied to the embedding"
    for evidence, row in zip(tensors, rows, strict=True):
        if row.multiplier == 1:
            continue
        for place in readout_places(evidence, row.role):
            multipliers.append(Multiplier(place.module, row.multiplier, "input", reason))
    return tuple(multipliers)


def _algorithm(evidence: Evidence, role: Role, request: Request) -> Algorithm:
    is_matrix = role == Role.HIDDEN and len(evidence.item.shape) == 2
    is_hidden = (is_matrix or evidence.is_stack) and not evidence.item.tensor.is_complex()
    return record_for(request.algorithm, is_hidden, evidence.item.shape)


def _factors_beside(
    present: float,
    evidence: Evidence,
    role: Role,
    group: str,
    request: Request,
    algorithm: Algorithm,
    streams: Streams,
) -> Factors:
    """Return the factors of a tensor whose product the forward code multiplies by `present`."""
    factors = Factors()
    if role != Role.FIXED:
        factors = _factors(evidence, role, group, request, algorithm, streams)
    if present == 1:
        return factors
    compensated = factors.with_multiplier(present, update_law(algorithm.law))
    return replace(compensated, multiplier=1.0)


def _factors(
    evidence: Evidence,
    role: Role,
    group: str,
    request: Request,
    algorithm: Algorithm,
    streams: Streams,
) -> Factors:
    into, out = evidence.fans
    rule = request.parameterization(algorithm.law)
    folded = width_factors(rule, role, Growth(into, out), algorithm.law)
    if algorithm.update_law.spectral and evidence.is_stack:
        # every matrix of a stack is orthogonalized by itself; of the two axes, one is summed over
        layout = evidence.only_matrix
        summed = 2 if layout is None else layout.fan_in[0]
        shape = evidence.item.shape
        alone = Growth(shape[summed], shape[3 - summed])
        folded = replace(folded, lr=width_factors(rule, role, alone, algorithm.law).lr)
    folded = replace(folded, lr=folded.lr / algorithm.rate_factor(evidence.item.shape))
    if group == "head_bias":  # the number of outputs is not a width
        folded = Factors()
    if group == "patch":  # a dense input is a sum over its features
        folded = replace(folded, std=folded.std * into**-0.5)
    law = algorithm.law
    if is_strategy(request.name) and isinstance(law, str) and law in STRATEGY_LAWS:
        if group in GROUPS:
            s2_group = group
        else:
            s2_group = "PE"
        width = streams.width(out)
        lr = group_rate(request.name, s2_group, into, out, law, width)
        folded = replace(folded, lr=lr)
    return folded
