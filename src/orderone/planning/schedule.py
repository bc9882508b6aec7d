"""Check that a learning-rate schedule preserves the ratios between groups.

A copy of the scheduler is run, and the learning rates of every step are compared. Schedules that
multiply preserve the ratios. An absolute floor or peak (`eta_min`, a scalar `max_lr`) does not: it
sets the same number for every group, without any error.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Adafactor, Optimizer

from orderone.core.errors import InputError
from orderone.optimizers import row_rates
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.muon import CONVENTION
from orderone.optimizers.muon_rates import convention_name
from orderone.optimizers.table import check_options, find_record, nearest_record
from orderone.theory.exponents.updates import update_law
from orderone.torch_compat import CHILD_SCHEDULERS, SEQUENTIAL_MILESTONES

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from orderone.planning.plan import Plan, Row

STEPS = 1000
MOST_STEPS = 1_000_000
ZERO = 1e-12  # relative to the planned learning rate: below it, weights do not move
FEWEST_DIGITS = 4  # of a ratio in a message
MOST_DIGITS = 12
LENGTHS = (
    "total_steps",
    "T_max",
    "T_0",
    "total_iters",
    "total_size",
    "step_size",
    "patience",
    "last_epoch",
)


class BrokenRatios(InputError):  # noqa: N818
    """Learning rates, weight decays or eps of the groups do not have the ratios of the plan."""


def check(
    plan: "Plan", optimizer: Optimizer, scheduler: "LRScheduler | None", steps: int | None
) -> None:
    """Raise BrokenRatios if the optimizer or the scheduler leaves the ratios of `plan`."""
    check_options(optimizer)
    _check_law(plan, optimizer)
    check_conventions(plan, optimizer)
    wanted = _wanted(plan, optimizer)
    scheduler = unwrapped(scheduler)
    if scheduler is not None:
        _must_belong(optimizer, scheduler)
    if not is_proportional(rates := _rates(optimizer), wanted):
        message = _message("before the first step", rates, wanted, scheduler)
        raise BrokenRatios(message, "broken-ratios", argument="optimizer")
    if scheduler is None:
        return
    length = _length(scheduler) if steps is None else steps
    if isinstance(optimizer, Adafactor):
        _must_reach(optimizer, length if steps is not None or length > STEPS else 0)
    step = 0
    for step, rates in enumerate(_simulate(optimizer, scheduler, length), 1):
        if not is_proportional(rates, wanted):
            message = _message(f"after step {step}", rates, wanted, scheduler)
            raise BrokenRatios(message, "broken-ratios", argument="scheduler")
    if step == 0 and length:
        raise _not_simulated()


def simulated_rates(
    optimizer: Optimizer, scheduler: Any, steps: int | None = None
) -> list[list[float]]:
    """Return the learning rates of every group, now and after each step of the schedule."""
    length = _length(scheduler) if steps is None else steps
    return [_rates(optimizer), *_simulate(optimizer, scheduler, length)]


def unwrapped(scheduler: Any) -> Any:
    """Return the scheduler inside wrappers of a trainer, such as those of Accelerate."""
    while hasattr(scheduler, "scheduler"):
        scheduler = scheduler.scheduler
    return scheduler


def check_ratios(optimizer: Optimizer, scheduler: Any) -> None:
    """Raise BrokenRatios if the scheduler changes the initial ratios of the optimizer."""
    _must_belong(optimizer, scheduler)
    wanted: list[float] = []
    for group in optimizer.param_groups:
        wanted.append(float(group.get("initial_lr", group["lr"])))
    step = 0
    for step, rates in enumerate(_simulate(optimizer, scheduler, _length(scheduler)), 1):
        if not is_proportional(rates, wanted):
            message = _message(f"after step {step}", rates, wanted, scheduler)
            raise BrokenRatios(message, "broken-ratios", argument="scheduler")
    if step == 0:
        raise _not_simulated()


def _not_simulated() -> InputError:
    return InputError(
        "scheduler: no step of it could be simulated on a copy; check yourself that it"
        " preserves the ratios between the learning rates of the groups",
        argument="scheduler",
    )


def remedy(optimizer: Optimizer, scheduler: Any) -> str:
    """Return what to do about a schedule that sets the same number for every group."""
    wanted: list[float] = []
    for group in optimizer.param_groups:
        wanted.append(float(group.get("initial_lr", group["lr"])))
    return _remedy(scheduler, wanted)


def _must_reach(optimizer: Optimizer, length: int) -> None:
    """Raise BrokenRatios if Adafactor's own schedule sets in within `length` steps.

    torch's Adafactor replaces a learning rate by 1 / sqrt(step) if that is smaller: one number for
    all groups.
    """
    rates = set(_rates(optimizer))
    last = int(max(rates) ** -2)
    if len(rates) > 1 and length > last:
        message = (
            f"optimizer: torch's Adafactor uses min(lr, 1/sqrt(step)), so that after {last} steps"
            " groups no longer have the ratios of the plan; use a learning rate of at most"
            f" {length**-0.5:.3g} for {length} steps"
        )
        raise BrokenRatios(message, "broken-ratios", argument="lr")


def _check_law(plan: "Plan", optimizer: Optimizer) -> None:
    """Raise an InputError if a known optimizer has another update law than those of the plan."""
    record = nearest_record(type(optimizer))
    if record is None or isinstance(optimizer, CombinedOptimizer):
        return
    names = list(dict.fromkeys(row.optimizer for row in plan.rows))
    planned = [find_record(name) for name in names]
    laws = [update_law(other.law) for other in planned if other is not None]
    if laws and update_law(record.law) not in laws:
        message = (
            f"optimizer: the size of the steps of {type(optimizer).__name__} follows another law"
            f" than that of {' and '.join(names)}, for which this plan has learning rates; make"
            f" the plan for it: plan(..., optimizer={record.name!r}), with the lr that you tuned"
        )
        raise InputError(message, "other-update-law", argument="optimizer")


def _wanted(plan: "Plan", optimizer: Optimizer) -> list[float]:
    """Return the plan's learning rate of every group.

    Raise an InputError if the groups mix tensors, or do not have exactly those of the plan.
    """
    planned: dict[int, Row] = {id(tensor): plan[name] for name, tensor in plan.tensors().items()}
    wanted: list[float] = []
    in_groups: set[str] = set()
    for number, group in enumerate(optimizer.param_groups):
        rows = _rows_of_group(group["params"], planned, number)
        for row in rows:
            in_groups.add(row.name)
            _same_setting("weight_decay", row.weight_decay, group, row, number)
            _same_setting(row.eps_name, row.eps, group, row, number)
            for setting, betas in row.averages.items():
                _same_setting(setting, betas, group, row, number)
            _same_rows(optimizer, group, row, number)
        rate = 0.0
        if rows:
            rate = rows[0].lr
        wanted.append(rate)
    missing = [row.name for row in plan.rows if row.name not in in_groups]
    if missing:
        message = (
            f"optimizer: {len(missing)} tensors of the plan are in no group, such as {missing[0]};"
            " use plan.param_groups()"
        )
        raise InputError(message, "tensors-without-group", argument="optimizer")
    return wanted


def _rows_of_group(
    parameters: Iterable[Tensor], planned: Mapping[int, "Row"], number: int
) -> list["Row"]:
    """Return the rows of the plan for a group; raise an InputError if their rates differ."""
    rows: list[Row] = []
    for parameter in parameters:
        if id(parameter) not in planned:
            message = (
                f"optimizer: group {number} has tensors that are not in the model of the plan;"
                " if the model was replaced or reloaded, call plan.attach(model)"
            )
            raise InputError(message, "tensors-without-group", argument="optimizer")
        rows.append(planned[id(parameter)])
    names = {row.lr: row.name for row in rows}
    if len(names) > 1:
        message = (
            f"optimizer: group {number} has {' and '.join(names.values())}, which need different"
            " learning rates; make the optimizer with plan.optimizer() or from"
            " plan.param_groups()"
        )
        raise BrokenRatios(message, "broken-ratios", argument="optimizer")
    return rows


def check_conventions(plan: "Plan", optimizer: Optimizer, model: nn.Module | None = None) -> None:
    """Raise BrokenRatios if Muon's learning rates follow another convention than the plan's."""
    planned = {id(tensor): plan[name] for name, tensor in plan.tensors(model).items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            row = planned.get(id(parameter))
            if row is None or (CONVENTION not in group and row.convention is None):
                continue
            present = convention_name(group.get(CONVENTION), CONVENTION)
            wanted = convention_name(row.convention)
            if present != wanted:
                message = (
                    f"{CONVENTION}: the optimizer has {present!r}, and the learning rate of"
                    f" {row.name} in this plan is for {wanted!r}; make the plan for it:"
                    f" plan(..., optimizer=functools.partial(orderone.optimizers.Muon,"
                    f" {CONVENTION}={present!r}))"
                )
                raise BrokenRatios(message, argument=CONVENTION)


def _same_setting(
    setting: str, planned: object, group: dict[str, Any], row: "Row", number: int
) -> None:
    if setting not in group or planned is None:
        return
    present = group[setting]
    pairs = list(zip(_as_tuple(planned), _as_tuple(present), strict=True))
    for ours, theirs in pairs:
        if not math.isclose(ours or 0.0, theirs or 0.0, rel_tol=1e-6):
            message = (
                f"optimizer: group {number} ({row.name}, ...) has {setting} {present}, the plan"
                f" has {planned}; pass {setting} to the plan, not to the optimizer"
            )
            raise BrokenRatios(message, "setting-of-the-plan", argument=setting)


def _same_rows(optimizer: Optimizer, group: dict[str, Any], row: "Row", number: int) -> None:
    """Raise BrokenRatios if the rows of a packed projection do not get the plan's settings."""
    planned = row.row_settings
    present = group.get(row_rates.KEY)
    if planned == present and (planned is None or row_rates.obeys(optimizer)):
        return
    message = (
        f"optimizer: group {number} ({row.name}, ...) does not have the plan's learning rates for"
        " the rows of queries and keys; make the optimizer with plan.optimizer() or from"
        " plan.param_groups(), and let it be a torch.optim.Optimizer"
    )
    raise BrokenRatios(message, "rows-without-rates", argument="optimizer")


def _as_tuple(value: object) -> tuple[Any, ...]:
    """Return the numbers of a setting; eps of Adafactor is a pair."""
    if isinstance(value, (tuple, list)):
        return tuple(value)
    return (value,)


def _must_belong(optimizer: Optimizer, scheduler: Any) -> None:
    """Raise an InputError if the scheduler changes the learning rates of another optimizer."""
    changed = _layers(getattr(scheduler, "optimizer", None))
    if all(layer is not other for layer in _layers(optimizer) for other in changed):
        raise InputError(
            "scheduler: it belongs to another optimizer, so that the learning rates of the plan"
            " would not follow it; make it from the optimizer that is trained with",
            argument="scheduler",
        )


def _layers(optimizer: Any) -> list[Any]:
    """Return an optimizer and those inside it: Accelerate and DeepSpeed wrap optimizers."""
    layers: list[Any] = []
    while optimizer is not None and all(optimizer is not layer for layer in layers):
        layers.append(optimizer)
        optimizer = getattr(optimizer, "optimizer", None)
    return layers


def _rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def is_proportional(rates: Sequence[float], wanted: Sequence[float]) -> bool:
    """Return whether all learning rates have one common factor, which may be zero."""
    factors = list(_by_factor(rates, wanted))
    largest = max(map(abs, factors), default=0.0)
    return largest < ZERO or max(factors) - min(factors) <= 1e-6 * largest


def _by_factor(rates: Sequence[float], wanted: Sequence[float]) -> dict[float, tuple[float, float]]:
    """Return learning rates, present and planned, by their ratio: the first pair of each ratio."""
    pairs: dict[float, tuple[float, float]] = {}
    for rate, want in zip(rates, wanted, strict=True):
        if want:
            pairs.setdefault(rate / want, (rate, want))
    return pairs


class _StandIn(Optimizer):
    """Optimizer with the settings of another one, one empty tensor per group, and no state."""

    def __init__(self, optimizer: Optimizer):
        groups: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            settings = {key: group[key] for key in group.keys() - {"params", "param_names"}}
            groups.append({**copy.deepcopy(settings), "params": [torch.empty(0)]})
        super().__init__(groups, dict(getattr(optimizer, "defaults", {})))

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing: only the schedule moves."""


def _simulate(optimizer: Optimizer, scheduler: Any, steps: int) -> Iterator[list[float]]:
    """Yield the learning rates of every step, on a copy of the schedule.

    The copy gets a stand-in for the optimizer: those of DeepSpeed cannot be copied, and others are
    large. A schedule that needs more of its optimizer than groups gets a copy of it, which shares
    only the tensors.
    """
    signs = (1.0, -1.0) if _takes_metrics(scheduler) else (1.0,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns because no optimizer step comes first
        for sign in signs:
            copied = _copied(optimizer, scheduler)
            for step in range(steps):
                try:
                    _advance(copied, sign * step)
                    rates = _rates(copied.optimizer)
                # a schedule of fixed length has ended; a user's function may raise anything then
                except Exception:
                    break
                yield rates


def _copied(optimizer: Optimizer, scheduler: Any) -> Any:
    copied = _with_stand_in(scheduler)
    if copied is None:
        copied = copy.deepcopy(scheduler, _shared(optimizer))
    if _takes_metrics(copied):  # let every step change the rates, however little
        for name in ("patience", "cooldown", "warmup", "eps"):
            if hasattr(copied, name):
                setattr(copied, name, 0)
    return copied


def _with_stand_in(scheduler: Any) -> Any:
    """Return a copy of the schedule with a stand-in; None if its first step fails with one."""
    copies: list[Any] = []
    try:
        for _ in range(2):  # one to try the first step, one to return
            memo: dict[int, Any] = {}
            for part in _parts(scheduler):
                memo.setdefault(id(part.optimizer), _StandIn(part.optimizer))
            copies.append(copy.deepcopy(scheduler, memo))
        _advance(copies[0])
    except Exception:  # a user's class may raise anything
        return None
    return copies[1]


def _shared(optimizer: Optimizer) -> dict[int, Any]:
    """Return a memo of deepcopy with which a copy shares the tensors and has no state."""
    memo: dict[int, Any] = {id(optimizer.state): {}}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            memo[id(parameter)] = parameter
    return memo


def _advance(scheduler: Any, metric: float = 0.0) -> None:
    if _takes_metrics(scheduler):
        scheduler.step(metric)
    elif _counts_samples(scheduler):
        scheduler.step(1)
    else:
        scheduler.step()


def _counts_samples(scheduler: Any) -> bool:
    """Return whether `step` takes the number of steps or samples (Megatron, NeMo)."""
    return _requires(scheduler, "increment")


def _takes_metrics(scheduler: Any) -> bool:
    """Return whether `step` takes a loss (ReduceLROnPlateau, GreedyLR of Transformers)."""
    return _requires(scheduler, "metrics")


def _requires(scheduler: Any, name: str) -> bool:
    step = getattr(scheduler, "step", None)
    parameter = None if step is None else inspect.signature(step).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def _length(scheduler: Any) -> int:
    """Return a number of steps that covers every length in the schedule and its parts."""
    known: list[int] = []
    for part in _parts(scheduler):
        for name in LENGTHS:
            value = getattr(part, name, None)
            if isinstance(value, int):
                known.append(value)
        for name in ("milestones", SEQUENTIAL_MILESTONES):
            milestones = list(getattr(part, name, None) or [])
            if milestones:
                known.append(int(max(milestones)))
    length = max(STEPS, 2 * max(known, default=0), sum(known))
    if length > MOST_STEPS:
        raise InputError(
            f"scheduler: it has {length} steps, too many to simulate; pass the number of steps to"
            " check: plan.check(..., steps=...)",
            argument="steps",
        )
    return length


def _parts(scheduler: Any) -> list[Any]:
    """Return the scheduler and all schedulers inside it."""
    parts = [scheduler]
    for inner in getattr(scheduler, CHILD_SCHEDULERS, []):
        parts += _parts(inner)
    return parts


def _message(when: str, rates: Sequence[float], wanted: Sequence[float], scheduler: Any) -> str:
    return (
        f"the learning rates of the groups do not have the ratios of the plan {when}:"
        f" {two_groups(rates, wanted)}. {_remedy(scheduler, wanted)}"
    )


def two_groups(rates: Sequence[float], wanted: Sequence[float]) -> str:
    """Return the two groups that differ most from the plan, with as many digits as show it."""
    by_factor = _by_factor(rates, wanted)
    first, first_planned = by_factor[min(by_factor)]
    second, second_planned = by_factor[max(by_factor)]
    digits = FEWEST_DIGITS
    while digits < MOST_DIGITS:
        if _ratio(first, second, digits) != _ratio(first_planned, second_planned, digits):
            break
        digits += 1
    present = _pair(first, second, digits)
    planned = _pair(first_planned, second_planned, digits)
    return f"two groups have {present}; in the plan they have {planned}"


def _pair(first: float, second: float, digits: int) -> str:
    pair = f"{first:.{digits + 1}g} and {second:.{digits + 1}g}"
    ratio = _ratio(first, second, digits)
    if not ratio:
        return pair
    return f"{pair} (ratio {ratio})"


def _ratio(first: float, second: float, digits: int) -> str:
    if not second:
        return ""
    return f"{first / second:.{digits}g}"


def _remedy(scheduler: Any, wanted: Sequence[float]) -> str:
    peak = max(wanted)
    for part in _parts(scheduler):
        floor = getattr(part, "eta_min", 0)
        kind = type(part).__name__
        if floor:
            if hasattr(part, "T_max"):
                time = f"t / {part.T_max}"
            else:
                time = f"(t % {part.T_0}) / {part.T_0}"
            return (
                f"{kind} has one eta_min for all groups; use a floor relative to the learning rate"
                " of each group instead: LambdaLR(optimizer, lambda t: f + (1 - f) * 0.5 * (1 +"
                f" math.cos(math.pi * {time}))) with f = {floor / peak:.4g}"
            )
        if kind == "OneCycleLR" or kind == "CyclicLR":
            remedy = f"Pass a list to {kind}: max_lr={_in_ratio(max(_tops(part)), wanted)}"
            if kind == "CyclicLR":
                return f"{remedy}, and the same for base_lr"
            return remedy
        if _takes_metrics(part) and any(getattr(part, "min_lrs", ())):
            remedy = f"Pass a list to {kind}: min_lr={_in_ratio(max(part.min_lrs), wanted)}"
            if hasattr(part, "max_lrs"):
                return f"{remedy}, and max_lr={_in_ratio(max(part.max_lrs), wanted)}"
            return remedy
    return (
        "Use a schedule that multiplies the learning rate of each group, and an optimizer made from"
        " plan.param_groups()"
    )


def _in_ratio(largest: float, wanted: Sequence[float]) -> list[float]:
    """Return learning rates in the ratios of the plan."""
    peak = max(wanted)
    rates: list[float] = []
    for rate in wanted:
        rates.append(float(f"{largest * rate / peak:.6g}"))
    return rates


def _tops(scheduler: Any) -> list[float]:
    groups = scheduler.optimizer.param_groups
    return (
        getattr(scheduler, "max_lrs", None)
        or [group.get("max_lr", group["lr"]) for group in groups]
        or [0.0]
    )
