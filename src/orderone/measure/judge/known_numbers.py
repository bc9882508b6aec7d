"""Numbers that are known without noise: their exponents, and the lines about them."""

import math
from collections.abc import Mapping

import numpy as np

from orderone.measure.judge.verdict import Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.quantities import Quantity

NONE = 1e-6  # exponents of smaller absolute value are zero


def slope(values: Mapping[int, float]) -> float:
    """Return the exponent of positive numbers by size; NaN for fewer than two sizes."""
    if len(values) < 2:
        return math.nan
    x = np.log(np.array(list(values), float))
    y = np.log(np.array(list(values.values()), float))
    x = x - x.mean()
    exponent = float(x @ y / (x @ x))
    return 0.0 if abs(exponent) < NONE else exponent


def known_line(
    name: str,
    quantity: Quantity,
    exponent: float,
    predicted: float,
    verdict: Verdict,
    cause: str,
    role: str,
) -> Judgement:
    """Return a line about a known number: its interval is a point."""
    return Judgement(
        name,
        quantity,
        0,
        exponent,
        exponent,
        exponent,
        predicted,
        verdict,
        cause,
        role,
        Reason.SETTING,
    )


def rates_of(study: StudyResult) -> dict[str, dict[int, float]]:
    """Return learning rates by tensor and size, at the first step where none is zero.

    A rate that is zero at all steps is zero. Layers that are counted together give the root of
    their mean square.
    """
    key = study.observations.key
    by_step: dict[str, list[dict[int, list[float]]]] = {}
    for run in study.observations.runs:
        for step, rates_now in enumerate(run.rates):
            for name, rate in rates_now.items():
                steps = by_step.setdefault(key(name), [])
                while len(steps) <= step:
                    steps.append({})
                steps[step].setdefault(run.size, []).append(rate)
    rates: dict[str, dict[int, float]] = {}
    for name, steps in by_step.items():
        for sizes in steps:
            sized = {size: _rms(values) for size, values in sizes.items()}
            if len(sized) >= len(steps[0]):
                rates[name] = sized
            if all(sized.values()):
                break
    return rates


def _rms(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))
