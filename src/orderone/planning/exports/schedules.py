"""Check of a trainer's schedule: all groups of an export must have one common factor.

Trainers write schedules in three forms:

    get_lr(peak, step, steps)     a function of the largest learning rate (OLMo-core's `Scheduler`)
    step(), or step(increment)    an object with an optimizer (torch, DeepSpeed, Megatron, NeMo)
    schedulers                    an object with several of these (torchtitan)
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from orderone.core.errors import InputError
from orderone.planning.optimizer_groups import BrokenRatios
from orderone.planning.schedule import is_proportional, simulated_rates, two_groups

Rates = list[list[float]]


def check_schedule(schedule: object, planned: Sequence[float], steps: int, remedy: str) -> None:
    """Raise BrokenRatios if a schedule does not multiply all learning rates by the same factor.

    `planned` are the different learning rates of an export.
    """
    get_lr = getattr(schedule, "get_lr", None)
    if callable(schedule) and not hasattr(schedule, "optimizer"):
        get_lr = schedule
    if get_lr is not None and not hasattr(schedule, "optimizer"):
        history = _by_function(cast(Callable[..., Any], get_lr), planned, steps)
        _check_function(history, planned, remedy)
        return
    parts = getattr(schedule, "schedulers", [schedule])
    if not parts or any(not hasattr(part, "optimizer") for part in parts):
        message = (
            "schedule: expected a scheduler of the trainer, or a function of the largest learning"
            f" rate, the step and the number of steps; got {type(schedule).__name__}"
        )
        raise InputError(message, "wrong-type", argument="schedule")
    histories = [simulated_rates(part.optimizer, part, steps) for part in parts]
    length = min(len(history) for history in histories)
    if length < 2:
        message = (
            "schedule: no step of it could be simulated on a copy; check yourself that it"
            " preserves the ratios between the learning rates of the groups"
        )
        raise InputError(message, argument="schedule")
    joined = [[rate for history in histories for rate in history[step]] for step in range(length)]
    _check_simulated(joined, planned, remedy)


def _by_function(get_lr: Callable[..., Any], planned: Sequence[float], steps: int) -> Rates:
    history: Rates = []
    for step in range(steps + 1):
        try:
            history.append([float(get_lr(rate, step, steps)) for rate in planned])
        except Exception as error:  # the user's function may raise anything
            message = (
                f"schedule: it failed at step {step} of {steps} ({type(error).__name__}: {error});"
                " pass the number of steps of your training as steps="
            )
            raise InputError(message, argument="schedule") from error
    return history


def _check_function(history: Rates, planned: Sequence[float], remedy: str) -> None:
    for step, rates in enumerate(history):
        if not is_proportional(rates, planned):
            raise _broken(step, rates, planned, remedy)


def _check_simulated(history: Rates, planned: Sequence[float], remedy: str) -> None:
    """Compare all steps with the step of the largest learning rates.

    The groups of a trainer have no names, so that their largest learning rates are compared with
    those of the export as a set.
    """
    peak = max(history, key=sum)
    scale = max(planned) / max(peak) if max(peak) else 0.0
    found = sorted({float(f"{rate * scale:.6g}") for rate in peak})
    if found != sorted({float(f"{rate:.6g}") for rate in planned}):
        raise _broken(history.index(peak), peak, planned, remedy)
    for step, rates in enumerate(history):
        if not is_proportional(rates, peak):
            raise _broken(step, rates, peak, remedy)


def _broken(
    step: int, rates: Sequence[float], planned: Sequence[float], remedy: str
) -> BrokenRatios:
    if len(rates) == len(planned):
        difference = two_groups(rates, planned)
    else:
        present = ", ".join(f"{rate:.5g}" for rate in rates[:4])
        wanted = ", ".join(f"{rate:.5g}" for rate in planned[:4])
        difference = f"groups have {present}; in the plan they have {wanted}"
    message = (
        f"schedule: expected one factor for all groups, but at step {step} {difference}. {remedy}"
    )
    return BrokenRatios(message, "broken-ratios", argument="schedule")
