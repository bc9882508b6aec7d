"""Check that a learning-rate schedule preserves the ratios between groups.

A copy of the scheduler is run, and the learning rates of every step are compared. Schedules that
multiply preserve the ratios. An absolute floor or peak (`eta_min`, a scalar `max_lr`) does not: it
sets the same number for every group, without any error.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import Adafactor, Optimizer

from orderone.core.errors import InputError
from orderone.optimizers.table import check_options
from orderone.planning.optimizer_groups import (
    BrokenRatios,
    check_conventions,
    check_law,
    planned_rates,
)
from orderone.planning.schedule_simulation import (
    STEPS,
    rates_of,
    schedule_length,
    schedules_in,
    simulate,
    takes_metrics,
)

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from orderone.planning.plan import Plan

ZERO = 1e-12  # relative to the planned learning rate: below it, weights do not move
FEWEST_DIGITS = 4  # of a ratio in a message
MOST_DIGITS = 12


def check(
    plan: "Plan", optimizer: Optimizer, scheduler: "LRScheduler | None", steps: int | None
) -> None:
    """Raise BrokenRatios if the optimizer or the scheduler leaves the ratios of `plan`."""
    check_options(optimizer)
    check_law(plan, optimizer)
    check_conventions(plan, optimizer)
    wanted = planned_rates(plan, optimizer)
    scheduler = unwrapped(scheduler)
    if scheduler is not None:
        _must_belong(optimizer, scheduler)
    if not is_proportional(rates := rates_of(optimizer), wanted):
        message = _message("before the first step", rates, wanted, scheduler)
        raise BrokenRatios(message, "broken-ratios", argument="optimizer")
    if scheduler is None:
        return
    length = schedule_length(scheduler) if steps is None else steps
    if isinstance(optimizer, Adafactor):
        _must_reach(optimizer, length if steps is not None or length > STEPS else 0)
    step = 0
    for step, rates in enumerate(simulate(optimizer, scheduler, length), 1):
        if not is_proportional(rates, wanted):
            message = _message(f"after step {step}", rates, wanted, scheduler)
            raise BrokenRatios(message, "broken-ratios", argument="scheduler")
    if step == 0 and length:
        raise _not_simulated()


def simulated_rates(
    optimizer: Optimizer, scheduler: Any, steps: int | None = None
) -> list[list[float]]:
    """Return the learning rates of every group, now and after each step of the schedule."""
    length = schedule_length(scheduler) if steps is None else steps
    return [rates_of(optimizer), *simulate(optimizer, scheduler, length)]


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
    for step, rates in enumerate(simulate(optimizer, scheduler, schedule_length(scheduler)), 1):
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
    rates = set(rates_of(optimizer))
    last = int(max(rates) ** -2)
    if len(rates) > 1 and length > last:
        message = (
            f"optimizer: torch's Adafactor uses min(lr, 1/sqrt(step)), so that after {last} steps"
            " groups no longer have the ratios of the plan; use a learning rate of at most"
            f" {length**-0.5:.3g} for {length} steps"
        )
        raise BrokenRatios(message, "broken-ratios", argument="lr")


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
    for part in schedules_in(scheduler):
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
        if takes_metrics(part) and any(getattr(part, "min_lrs", ())):
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
