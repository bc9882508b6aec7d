"""Schedules: one factor for all learning rates, so that the ratios between groups never change:

    f(t) = (t + 1) / warmup                        t < warmup
    f(t) = final + (1 - final) s(p)                p = (t - warmup) / (steps - warmup), at most 1
    s(p) = 1 (constant),  1 - p (linear),  (1 + cos(pi p)) / 2 (cosine)

`final` is a fraction of the peak, not a learning rate: an absolute minimum would give all groups
the same learning rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real

Factor = Callable[[int], float]
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda p: 1.0,
    "linear": lambda p: 1 - p,
    "cosine": lambda p: (1 + math.cos(math.pi * p)) / 2,
}


@dataclass(frozen=True)
class Schedule:
    """Factor as a function of the step, for `LambdaLR(optimizer, schedule)`.

    It can be pickled and compared.
    """

    name: str
    steps: int
    warmup: int = 0
    final: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        return self.final + (1 - self.final) * SHAPES[self.name](progress)


def schedule(name: Name | Factor, steps: Count, warmup: Count = 0, final: Number = 0.0) -> Factor:
    """Return the factor of all learning rates as a function of the step (0, 1, ...).

    Args:
        name: constant, linear or cosine; or a function of the step, which is returned as it is.
        steps: Total number of updates.
        warmup: Updates during which the factor rises to 1; part of `steps`.
        final: Last value of linear and cosine, as a fraction of the peak.
    """
    steps = count(steps, "steps")
    warmup = count(warmup, "warmup", least=0)
    if callable(name):
        return _check_function(name, warmup)
    if warmup > steps:
        raise InputError(
            f"warmup: expected at most steps = {steps}, got {warmup}", argument="warmup"
        )
    return Schedule(
        one_of(name, SHAPES, "schedule"), steps, warmup, real(final, "final", least=0, most=1)
    )


def _check_function(factor: Factor, warmup: int) -> Factor:
    """Return a schedule function of the user, if it can be used."""
    if warmup:
        raise InputError(
            f"warmup: expected 0 if schedule is a function, got {warmup}; write the warm-up into"
            " the function",
            argument="warmup",
        )
    try:
        first = factor(0)
    except TypeError as error:
        message = f"schedule: expected a function of the step, got {factor!r} ({error})"
        raise InputError(message, "wrong-type", argument="schedule") from error
    real(first, "schedule(0)", least=0)
    return factor
