"""Forecast of the loss of a size that was not trained, from a power law through the others.

The losses are those at the best learning rate of every size (`optimum`), their errors come from the
seeds. The variance between seeds is pooled over the sizes, because two or three seeds of one size
say little about it:

    v_i = s^2 / S_i + (a_i r_i^2)^2,     s^2 = sum_i (S_i - 1) S_i e_i^2 / sum_i (S_i - 1)

with S_i seeds, standard error e_i of the loss, bend a_i and resolution r_i of the grid. The law and
the interval are those of `power_law`. The interval is for the mean loss over seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orderone.core.errors import InputError
from orderone.core.text_table import wrapped
from orderone.sweeping.drift import SEEDS, SIZES
from orderone.sweeping.optimum import INSIDE, Optimum, quantile
from orderone.sweeping.power_law import PowerLaw, Value

TOKEN_COUNTS = 3  # different numbers of tokens that a law in tokens needs
ONE_SIDED = 0.999  # confidence that the loss rises with the size, which no forecast allows
Point = tuple[float | None, Optimum]  # number of tokens, if they vary, and the optimum


@dataclass(frozen=True)
class Forecast:
    """Loss that a model of another size is expected to reach with its best learning rate.

    `low` to `high` is the interval of the mean loss over seeds. `check` is the same forecast for
    the largest size that was run, made without that size; None with fewer than four sizes.
    """

    rule: str
    axis: str
    size: int
    tokens: float | None
    loss: float
    low: float
    high: float
    limit: Value  # loss in the limit of large sizes
    law: PowerLaw
    seeds: int  # of the size with the fewest
    check: "Checked | None" = None

    @property
    def doublings(self) -> float:
        """Doublings from the largest size that was run; negative for smaller sizes."""
        return math.log2(self.size / self.law.sizes[:, 0].max())

    @property
    def exponents(self) -> tuple[float, ...]:
        """Exponents of the law in the size, and in the tokens if they are part of it."""
        return self.law.exponents

    @property
    def formula(self) -> str:
        """The law as text: `1.2 + 3.1 width^-0.45`."""
        offset, *factors = self.law.coefficients
        text = f"{offset:.3g}"
        names = (self.axis, "tokens")
        for name, factor, power in zip(names, factors, self.exponents, strict=False):
            text += f" + {factor:.3g} {name}^-{power:.2g}"
        return text

    def __str__(self) -> str:
        place = f"{self.axis} {self.size}"
        if self.tokens is not None:
            place += f" and {self.tokens:.3g} tokens"
        lines = [f"{self.rule} at {place}: loss {Value(self.loss, self.low, self.high)}"]
        sizes = len(np.unique(self.law.sizes[:, 0]))
        lines += wrapped(
            f"{self.formula}, fitted to {sizes} {self.axis}s with {self.seeds} or more seeds each;"
            f" the target is {2**self.doublings:.3g} times the largest"
        )
        lines += wrapped(
            f"in the limit of large {self.axis}s the loss is between {self.limit.low:.4g} and"
            f" {self.limit.high:.4g}"
        )
        if self.check is not None:
            lines += wrapped(str(self.check))
        return "\n".join(lines)


@dataclass(frozen=True)
class Checked:
    """Forecast for the largest size from the smaller ones, and the loss that was measured there."""

    axis: str
    size: int
    forecast: Value
    measured: float
    error: float  # standard error of `measured`
    confidence: float
    freedom: float

    @property
    def held(self) -> bool:
        """Whether forecast and measurement agree within their intervals."""
        reach = quantile(self.freedom, self.confidence) * self.error
        return self.forecast.low - reach <= self.measured <= self.forecast.high + reach

    def __str__(self) -> str:
        if self.held:
            verdict = "agrees"
        else:
            verdict = "does NOT agree: do not rely on this forecast"
        return (
            f"check: the loss of {self.axis} {self.size}, forecast without its trainings, is"
            f" {self.forecast}; measured {self.measured:.4g}, which {verdict}"
        )


def forecast(
    rule: str, points: Sequence[Point], *, axis: str, size: int, tokens: float | None, level: float
) -> Forecast:
    """Return the forecast; raise an InputError if the trainings support none."""
    law = fit_law(rule, points, axis, tokens, level)
    if tokens is None:
        target = [float(size)]
    else:
        target = [float(size), tokens]
    value = law.at(target)
    return Forecast(
        rule=rule,
        axis=axis,
        size=size,
        tokens=tokens,
        loss=value.value,
        low=value.low,
        high=value.high,
        limit=law.limit,
        law=law,
        seeds=min(best.seeds for _, best in points if best.beyond == INSIDE),
        check=_checked(rule, points, axis, tokens, level),
    )


def _scales(size: int, tokens: float | None) -> list[float]:
    """Return the variables of the law: the size, and the tokens if these vary."""
    if tokens is None:
        return [float(size)]
    return [float(size), tokens]


def fit_law(
    rule: str, points: Sequence[Point], axis: str, tokens: float | None, level: float
) -> PowerLaw:
    """Fit the law to optima inside their grids; raise an InputError if there are too few."""
    inside = [(amount, best) for amount, best in points if best.beyond == INSIDE]
    _check_enough(rule, inside, points, axis)
    sizes: list[list[float]] = []
    for amount, best in inside:
        sizes.append(_scales(best.size, amount))
    if tokens is not None:
        _check_tokens(rule, inside, axis)
    optima = [best for _, best in inside]
    variances, freedom = _variances(optima)
    losses = np.array([best.loss for best in optima])
    law = PowerLaw(np.array(sizes), losses, variances, freedom, level)
    if tokens is None:
        _check_falls(rule, law, axis)
    return law


def _check_enough(rule: str, inside: Sequence[Point], points: Sequence[Point], axis: str) -> None:
    sizes = {best.size for _, best in inside}
    if len(sizes) < SIZES:
        without = len({best.size for _, best in points}) - len(sizes)
        outside = ""
        remedy = f"add {axis}s"
        if without:
            outside = f" ({without} others have no best learning rate inside the grid)"
            remedy = f"widen the grid of learning rates, or {remedy}"
        raise InputError(
            f"forecast: {rule} has the best loss of {len(sizes)} {axis}s{outside}, and a power law"
            f" with an offset needs {SIZES} or more; {remedy}",
            "needs-more-sizes",
            argument=axis,
        )
    fewest = min(best.seeds for _, best in inside)
    if fewest < SEEDS:
        raise InputError(
            f"forecast: {rule} has {fewest} seed, and the interval needs {SEEDS} or more, better"
            " 3; add seeds",
            "needs-more-seeds",
            argument="seed",
        )


def _check_tokens(rule: str, inside: Sequence[Point], axis: str) -> None:
    """Raise an InputError unless sizes and tokens vary independently, with enough values."""
    amounts = {amount for amount, _ in inside}
    spread = len(amounts)
    several: dict[int, set[float | None]] = {}
    for amount, best in inside:
        several.setdefault(best.size, set()).add(amount)
    most = max(len(values) for values in several.values())
    if spread < TOKEN_COUNTS or most < TOKEN_COUNTS:
        raise InputError(
            f"forecast: tokens= needs trainings with {TOKEN_COUNTS} or more numbers of tokens at"
            f" the same {axis}; {rule} has {most}. Sweep the steps: space={{'steps': [...]}}; or"
            " leave out tokens= for a forecast at the number of tokens of the study",
            "tokens-do-not-vary",
            argument="tokens",
        )


def _variances(optima: Sequence[Optimum]) -> tuple[np.ndarray, float]:
    """Return the variances of the losses, and the degrees of freedom of their estimate."""
    freedom = sum(best.seeds - 1 for best in optima)
    pooled = sum((best.seeds - 1) * best.seeds * best.loss_noise**2 for best in optima) / freedom
    variances: list[float] = []
    for best in optima:
        from_grid = max(best.bend, 0.0) * best.resolution**2
        variances.append(pooled / best.seeds + from_grid**2)
    return np.array(variances), float(freedom)


def _check_falls(rule: str, law: PowerLaw, axis: str) -> None:
    """Raise an InputError if the loss rises with the size, which no power law describes."""
    order = np.argsort(law.sizes[:, 0])
    first, last = order[0], order[-1]
    rise = float(law.losses[last] - law.losses[first])
    error = math.sqrt(float(law.variances[first] + law.variances[last]))
    if rise > quantile(law.freedom, 2 * ONE_SIDED - 1) * error:
        raise InputError(
            f"forecast: the loss of {rule} rises from {law.losses[first]:.4g} at {axis}"
            f" {law.sizes[first, 0]:g} to {law.losses[last]:.4g} at {axis}"
            f" {law.sizes[last, 0]:g}, so there is no power law to extrapolate; check the model"
            " with o1.coord_check, or train longer",
            "loss-rises",
            argument=axis,
        )


def _checked(
    rule: str, points: Sequence[Point], axis: str, tokens: float | None, level: float
) -> Checked | None:
    """Return the forecast of the largest size without it; None if too few sizes remain."""
    inside = [(amount, best) for amount, best in points if best.beyond == INSIDE]
    largest = max(best.size for _, best in inside)
    rest = [(amount, best) for amount, best in inside if best.size < largest]
    if len({best.size for _, best in rest}) < SIZES:
        return None
    amount, measured = max(
        (point for point in inside if point[1].size == largest), key=lambda point: point[0] or 0
    )
    try:
        law = fit_law(rule, rest, axis, tokens, level)
    except InputError:  # a noisy start may rise without the largest size
        return None
    variances, freedom = _variances([best for _, best in inside])
    return Checked(
        axis=axis,
        size=largest,
        forecast=law.at(_scales(largest, amount)),
        measured=measured.loss,
        error=math.sqrt(float(variances[inside.index((amount, measured))])),
        confidence=level,
        freedom=freedom,
    )
