"""Numbers that are known without noise: their exponents, and the lines about them."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy.special import polygamma
from torch import Tensor, nn

from orderone.measure.judge.verdict import Judgement, Reason, Verdict
from orderone.measure.observations import RunKey, StudyResult
from orderone.observe.moments import Moments
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


def settings_by_size(study: StudyResult, setting: str) -> dict[str, dict[int, float]]:
    """Return a setting by tensor and size."""
    key = study.observations.key
    values: dict[str, dict[int, float]] = {}
    for run in study.observations.runs:
        for name, settings in run.settings.items():
            if setting in settings:
                values.setdefault(key(name), {})[run.size] = settings[setting]
    return values


def deviation_of_start(starts: Mapping[RunKey, Moments], entries: int | None = None) -> float:
    """Return the standard deviation of the exponent that random initial values have by chance.

    The logarithm of the RMS of N normal numbers has the variance trigamma(N / 2) / 4, about 1 / 2N.
    `entries` is N, if it is less than the number of values.
    """
    x = np.log([float(size) for size, _ in starts])
    entries = entries or min(moments.entries for moments in starts.values())
    variance = float(polygamma(1, entries / 2)) / 4
    return math.sqrt(variance / ((x - x.mean()) ** 2).sum())


def constant_sizes(model: nn.Module) -> dict[str, float]:
    """Return the size of each tensor that is no parameter, by name."""
    tensors = dict(model.named_buffers())
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}.{name}"] = value
    sizes: dict[str, float] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            norm = float(torch.linalg.vector_norm(tensor.detach().double()))
            if math.isfinite(norm):
                sizes[name] = norm / math.sqrt(tensor.numel())
    return sizes
