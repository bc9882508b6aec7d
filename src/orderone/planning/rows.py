"""Rows of a relative plan, from the drafts of its tensors and the settings of the user."""

from collections.abc import Mapping
from typing import TypeAlias

from orderone.optimizers.table import Algorithm, Eps
from orderone.planning import adjustments
from orderone.planning.adjustments import Draft, DraftBlock
from orderone.planning.horizon import scaled_betas, times
from orderone.planning.initial import Initial, measure
from orderone.planning.origins import Origin
from orderone.planning.plan_row import Block, Row
from orderone.planning.request import Request
from orderone.planning.roles.structure import group_of
from orderone.planning.settings import Subject
from orderone.rules.axes import Factors

# drafts after each step that changes factors, by the name that the plan prints
Stages: TypeAlias = Mapping[str, adjustments.Drafts]
LAST = "gauge"  # the last step


def make_row(request: Request, draft: Draft, subject: Subject, width: int | None) -> Row:
    item = draft.evidence.item
    factors = draft.factors
    algorithm = draft.algorithm
    initial = _initial(draft)
    init_scale = request.init_scale_of(subject, len(item.shape))
    constant = None
    if initial.constant is not None:
        constant = initial.constant * factors.std * init_scale * draft.own_depth
    horizon = _horizon(request, draft)
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
        weight_decay=_weight_decay(request, draft, subject, factors),
        eps=_eps(request, draft, factors, horizon),
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
        blocks=tuple(_block(request, block, draft, subject, initial) for block in draft.blocks),
        convention=algorithm.convention,
        horizon=horizon,
        betas=_betas(draft, horizon),
    )


def _initial(draft: Draft) -> Initial:
    """Return the initial size in the base; a frozen tensor keeps its own."""
    item = draft.evidence.item
    if draft.trained or item.tensor.is_meta:
        return draft.base
    return measure(item.tensor)


def _horizon(request: Request, draft: Draft) -> Factors:
    """Return the product of the factors of batch size, tokens and further axes."""
    horizon = Factors()
    by_axis = request.horizon_factors(draft.algorithm, draft.role, draft.trained)
    for factors in by_axis.values():
        horizon = horizon * factors
    return horizon


def _eps(request: Request, draft: Draft, factors: Factors, horizon: Factors) -> Eps:
    eps = request.scaled_eps(draft.algorithm, draft.evidence, factors)
    return times(eps, horizon.eps**draft.algorithm.eps_power)


def _weight_decay(request: Request, draft: Draft, subject: Subject, factors: Factors) -> float:
    base = request.weight_decay_of(draft.algorithm, subject)
    grown = request.decay_factor(draft.algorithm, factors, draft.role, draft.resolved.growth)
    return base * grown * _horizon(request, draft).weight_decay


def _betas(draft: Draft, horizon: Factors) -> tuple[float, ...] | None:
    """Return the betas of a tensor; None if they are those of the base."""
    factors = (draft.factors * horizon).betas
    if factors == (1.0, 1.0):
        return None
    return scaled_betas(draft.algorithm, draft.algorithm.betas, factors)


def origins(request: Request, row: Row, subject: Subject, stages: Stages) -> tuple[Origin, ...]:
    """Return the factors of a row by axis, adjustment and setting of the user."""
    if not row.trained:
        return ()
    draft = stages[LAST][row.name]
    origins = [_tuned(request, draft.algorithm, subject, row.init_scale)]
    before = Origin("base")
    earlier: Draft | None = None
    for name, drafts in stages.items():
        if drafts[row.name] is earlier:
            continue  # this step changes nothing here
        earlier = drafts[row.name]
        after = _cumulative(request, earlier)
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
    by_axis = request.horizon_factors(draft.algorithm, draft.role, draft.trained)
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


def _tuned(request: Request, algorithm: Algorithm, subject: Subject, init_scale: float) -> Origin:
    """Return the user's values of this tensor over the defaults: the same at every size."""
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


def _cumulative(request: Request, draft: Draft) -> Origin:
    """Return the factors of a draft, relative to the base."""
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


def _block(
    request: Request, block: DraftBlock, draft: Draft, subject: Subject, initial: Initial
) -> Block:
    """Return the settings of rows that have factors of their own."""
    algorithm = draft.algorithm
    scale = request.init_scale_of(subject, len(draft.evidence.item.shape)) * draft.own_depth
    horizon = _horizon(request, draft)
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
        weight_decay=_weight_decay(request, draft, subject, factors),
        eps=_eps(request, draft, factors, horizon),
        factors=factors,
    )


def _size(eps: Eps) -> float:
    """Return eps as one number: the second of a pair, 0 if there is none."""
    if isinstance(eps, tuple):
        return eps[1]
    return eps or 0.0


def _ratio(after: tuple[float, float], before: tuple[float, float]) -> tuple[float, float]:
    return (after[0] / before[0], after[1] / before[1])
