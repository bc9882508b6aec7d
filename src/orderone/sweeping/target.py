"""Settings for a size that was not tuned: learning rate, reason, and expected extra loss.

Let x = log2(learning rate), x* the best x of a size, and k the number of doublings from the size
that x was taken from to the target:

    Using x at the target costs a (x*(target) - x)^2, and x* moves by drift k in k doublings, so
    on average regret = a ((drift k)^2 + (error of the drift)^2 k^2)

with the bend a of the loss at the largest size that was run. If the trainings contradict every
learning rate that could be used, `target` raises an error with the reason. An optimum beyond the
grid is still known to lie on one side of it. A drift outside the tolerance, even without enough
data, does not justify using the same rate; nor does a rule for which theory predicts a drift. Its
rate is extrapolated from the largest size: with the measured drift where it is known, otherwise
with the predicted one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, without_code
from orderone.core.text_table import printable, wrapped
from orderone.optimizers.table import name_in_label
from orderone.planning import Plan, plan
from orderone.sweeping.drift import MOVES, SEEDS, TRANSFERS, Drift, beyond_grid
from orderone.sweeping.optimum import ABOVE, INSIDE, Optimum
from orderone.sweeping.trial import setting_of

POOLED = "pooled"
LARGEST = "largest"
EXTRAPOLATED = "extrapolated"
# octaves, for a grid of ratio 2: the best point of the grid is the last one if the optimum is this
# close to it
HALF_A_STEP = 0.5
ENOUGH_SEEDS = 3  # recommended; two are the least for an interval


@dataclass(frozen=True)
class Target:
    """Settings for a model of another size: print it, paste `snippet`, or call `plan(model, base)`.

    The interval from `low` to `high` is where the best learning rate of that size is expected.
    """

    rule: str
    optimizer: str
    axis: str
    size: int
    base: int
    lr: float
    low: float
    high: float
    source: str
    why: str
    regret: float
    verdict: str
    options: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)  # the other size, if models have two
    setting: str = "lr"  # the learning rate that `lr` is the value of: lr or lr.embedding
    rates: Mapping[str, float] = field(default_factory=dict)  # the others, by their names
    seeds: int = SEEDS  # of the size with the fewest
    grid: tuple[float, float] = (0.0, np.inf)  # smallest and largest learning rate that was run

    @property
    def rates_for_plan(self) -> float | dict[str, float]:
        """Learning rates as `plan` takes them: a number, or a mapping."""
        rates = setting_of({**self.rates, self.setting: self.lr}, "lr")
        assert rates is not None  # it has at least `self.lr`
        return cast("float | dict[str, float]", rates)  # learning rates are numbers

    @property
    def cautions(self) -> tuple[str, ...]:
        """Reasons to try these settings before using them; none if they were measured."""
        reasons: list[str] = []
        if self.source == EXTRAPOLATED:
            reasons.append(f"extrapolated to {self.axis} {self.size}, where nothing was trained")
        if self.seeds < SEEDS:
            reasons.append(
                "from one seed: the uncertainty is unknown; run at least"
                f" {SEEDS - self.seeds} more, better {ENOUGH_SEEDS - self.seeds} more"
            )
        low, high = self.grid
        if not low <= self.lr <= high:
            reasons.append(
                f"{self.setting} {self.lr:.3g} is outside the grid of the trainings"
                f" ({low:.3g} to {high:.3g})"
            )
        return tuple(reasons)

    @property
    def snippet(self) -> str:
        """Code that makes the plan, the model and the optimizer, below its cautions as comments."""
        return "\n".join([*(f"# caution: {reason}" for reason in self.cautions), self._code])

    @property
    def _code(self) -> str:
        rates = _rates_code(self.rates_for_plan)
        settings = f'rule="{self.rule}", optimizer={self._optimizer}, lr={rates}'
        for name, value in self.options.items():
            if value is not None:
                settings += f", {name}={value!r}"
        return (
            f"plan = o1.plan({self._built(self.size)}, base={self._built(self.base)}, {settings})\n"
            "model, optimizer = plan.apply(), plan.optimizer()"
        )

    @property
    def _optimizer(self) -> str:
        """Optimizer as code: a name in quotes, or the name of a custom class."""
        if name_in_label(self.optimizer) == self.optimizer:
            return f'"{self.optimizer}"'
        return self.optimizer.rstrip(")").rpartition(".")[2]

    def _built(self, size: int) -> str:
        """Return `build(64)`, or `build(width=64, depth=4)` if models have both sizes."""
        if not self.held:
            return f"build({size})"
        sizes = {**self.held, self.axis: size}
        named = ", ".join(f"{name}={value}" for name, value in sizes.items())
        return f"build({named})"

    def plan(self, model: nn.Module, base: Any, optimizer: type[Optimizer] | None = None) -> Plan:
        """Return the plan for a model of this size, relative to a model of the base's size.

        Both may be on the meta device. A study with a custom optimizer class needs that class here.
        """
        if optimizer is None:
            chosen = self.optimizer
        else:
            chosen = optimizer
        return plan(
            model,
            base=base,
            rule=self.rule,
            optimizer=chosen,
            lr=self.rates_for_plan,
            **self.options,
        )

    def __str__(self) -> str:
        provisional = " (provisional)" if self.cautions else ""
        place = f"{self.rule} at {self.axis} {self.size}"
        lines = [f"{place}: {self.setting} {self.lr:.3g}{provisional}"]
        lines += [*wrapped(self.why), *wrapped(self.outlook)]
        for reason in self.cautions:
            lines += wrapped(f"caution: {reason}")
        lines += [f"  {line}" for line in self._code.splitlines()]
        return printable("\n".join(lines))

    @property
    def outlook(self) -> str:
        """Sentence on the best learning rate of that size, and on the expected extra loss."""
        best = f"the best {self.setting} of {self.axis} {self.size}"
        if not np.isfinite(self.regret):
            return f"{best} cannot be estimated from these trainings"
        low, high = self.grid
        if self.low == low:
            below = " (the end of the grid)"
        else:
            below = ""
        if self.high == high:
            above = " (the end of the grid)"
        else:
            above = ""
        expected = f"{best} is expected between {self.low:.3g}{below} and {self.high:.3g}{above}"
        if below or above:
            return f"{expected}; the trainings cannot bound it further"
        return f"{expected}; using {self.lr:.3g} instead costs about {self.regret:.2g} in loss"


@dataclass(frozen=True)
class _Choice:
    """A learning rate, the size it belongs to, and the slopes to expect from there."""

    x: float  # log2(lr)
    at: float  # log2(size)
    source: str
    why: str
    slope: float  # of the best log2(lr), as far as it is known; 0 otherwise
    low: float
    high: float


def _rates_code(rates: float | Mapping[str, float]) -> str:
    if not isinstance(rates, Mapping):
        return f"{rates:.4g}"
    entries = [f'"{key}": {value:.4g}' for key, value in rates.items()]
    return f"{{{', '.join(entries)}}}"


def _largest(optima: Sequence[Optimum]) -> Optimum:
    return max(optima, key=lambda optimum: optimum.size)


def _inside_grid(
    optima: Sequence[Optimum], drift: Drift, axis: str, size: int
) -> Sequence[Optimum]:
    """Return the optima inside the grid of learning rates; raise an InputError if there is none."""
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    if inside:
        return inside
    remedy = beyond_grid(optima, axis)[1]
    raise InputError(
        f"{drift.rule}: no learning rate can be named for {axis} {size}: no {axis} has its best"
        f" learning rate inside the grid; {without_code(remedy)}",
        "no-learning-rate",
        argument=axis,
    )


def target(
    optima: Sequence[Optimum],
    drift: Drift,
    *,
    axis: str,
    size: int,
    base: int,
    tolerance: float,
    optimizer: str,
    options: Mapping[str, Any],
    held: Mapping[str, int],
    setting: str,
    rates: Mapping[str, float],
) -> Target:
    """Return the settings for this size; raise an InputError if the trainings support none."""
    inside = _inside_grid(optima, drift, axis, size)
    choice = _choice(inside, drift, axis, size, tolerance)
    _check_evidence(optima, drift, choice, axis, size, tolerance)
    grid = min(each.grid[0] for each in optima), max(each.grid[1] for each in optima)
    seeds = min(each.seeds for each in optima)
    ends, squared = _forecast(choice, float(np.log2(size) - choice.at), drift)
    if seeds >= SEEDS and choice.source != EXTRAPOLATED:
        ends = max(ends[0], grid[0]), min(ends[1], grid[1])
    return Target(
        rule=drift.rule,
        optimizer=optimizer,
        axis=axis,
        size=size,
        base=base,
        lr=float(np.exp2(choice.x)),
        low=float(np.exp2(ends[0])),
        high=float(np.exp2(ends[1])),
        source=choice.source,
        why=choice.why,
        regret=float(max(_largest(inside).bend, 0.0) * squared),
        verdict=drift.verdict,
        options=dict(options),
        held=dict(held),
        seeds=seeds,
        grid=(float(np.exp2(grid[0])), float(np.exp2(grid[1]))),
        setting=setting,
        rates=dict(rates),
    )


def _forecast(choice: _Choice, k: float, drift: Drift) -> tuple[tuple[float, float], float]:
    """Return the interval of x* after k doublings, and the mean of (x* - x)^2."""
    if choice.source == EXTRAPOLATED:
        moved = 0.0
    else:
        moved = choice.slope * k
    if not k:  # an unknown drift (inf) costs nothing here
        return (choice.x + moved, choice.x + moved), moved**2
    ends = [
        choice.x + moved + k * (choice.low - choice.slope),
        choice.x + moved + k * (choice.high - choice.slope),
    ]
    return (min(ends), max(ends)), moved**2 + (drift.error * k) ** 2


def _choice(
    inside: Sequence[Optimum], drift: Drift, axis: str, size: int, tolerance: float
) -> _Choice:
    """Choose the learning rate by the verdict and by the drift that theory predicts."""
    largest = max(inside, key=lambda optimum: optimum.size)
    top = float(np.log2(largest.size))
    slope = drift.slope if np.isfinite(drift.slope) else 0.0
    if drift.verdict == MOVES or (drift.should_move(tolerance) and size != largest.size):
        return _extrapolated(largest, drift, size, tolerance)
    if drift.verdict == TRANSFERS and drift.low <= 0 <= drift.high:
        weights = [1 / (optimum.noise**2 + optimum.resolution**2) for optimum in inside]
        x = float(np.average([optimum.x for optimum in inside], weights=weights))
        doublings = np.log2([optimum.size for optimum in inside])
        at = float(np.average(doublings, weights=weights))
        why = f"the weighted mean over all {axis}s, since no drift was detected"
        return _Choice(x, at, POOLED, why, slope, drift.low, drift.high)
    why = f"the best lr of {axis} {largest.size}, the nearest"
    if drift.verdict == TRANSFERS:
        why += ", since a small drift was detected"
    else:
        why += "; transfer is not established"
    return _Choice(largest.x, top, LARGEST, why, slope, drift.low, drift.high)


def _extrapolated(largest: Optimum, drift: Drift, size: int, tolerance: float) -> _Choice:
    """Extrapolate from the largest size, with the measured drift or with the predicted one."""
    top = float(np.log2(largest.size))
    doublings = float(np.log2(size)) - top
    low = drift.low
    high = drift.high
    if drift.verdict == MOVES:
        slope = drift.slope
        why = f"extrapolated by {slope:+z.2f} octaves per doubling, since the best lr moves"
    else:
        full, worst = drift.predicted
        certain = drift.verdict == TRANSFERS or _moves(drift, tolerance)
        slope = drift.slope if certain else full
        if certain:
            which = "measured"
        else:
            which = "predicted, since the measured drift is uncertain"
        why = (
            f"extrapolated by {slope:+z.2f} octaves per doubling ({which}): theory predicts that"
            f" the best lr of {drift.rule} moves by {full:g} to {worst:g}"
        )
        if np.isfinite(drift.error):
            low = min(low, full, worst)
            high = max(high, full, worst)
    x = largest.x + slope * doublings
    return _Choice(x, top, EXTRAPOLATED, why, slope, low, high)


def _moves(drift: Drift, tolerance: float) -> bool:
    """Return whether the interval of the drift lies outside the tolerance, on one side."""
    return drift.low > tolerance or drift.high < -tolerance


def _remedy(drift: Drift, outside: Sequence[Optimum], axis: str) -> str:
    """Return what to run so that a learning rate can be named."""
    remedy = without_code(drift.remedy)
    if outside:
        wider = without_code(beyond_grid(outside, axis)[1])
        if wider not in remedy:
            remedy = "; ".join(filter(None, [remedy, wider]))
    return remedy or "widen the grid of learning rates"


def _check_evidence(
    optima: Sequence[Optimum],
    drift: Drift,
    choice: _Choice,
    axis: str,
    size: int,
    tolerance: float,
) -> None:
    """Raise an InputError if the trainings contradict this learning rate at this size."""
    largest = _largest([optimum for optimum in optima if optimum.beyond == INSIDE])
    if drift.verdict == TRANSFERS or size == largest.size:
        return
    start = f"{drift.rule}: no learning rate can be named for {axis} {size}: "
    outside = [optimum for optimum in optima if optimum.beyond != INSIDE]
    remedy = _remedy(drift, outside, axis)
    extrapolated = choice.source == EXTRAPOLATED
    if not extrapolated and _moves(drift, tolerance):
        reason = (
            f"the best lr seems to move by {drift.slope:+z.2f} octaves per doubling, but this is"
            f" not certain: {drift.why}"
        )
        raise InputError(f"{start}{reason}; {remedy}", "no-learning-rate", argument=axis)
    for optimum in outside:
        expected = choice.x
        if extrapolated:
            expected = largest.x + choice.slope * float(np.log2(optimum.size / largest.size))
        if optimum.low - HALF_A_STEP <= expected <= optimum.high + HALF_A_STEP:
            continue
        if optimum.beyond == ABOVE:
            place = f"above {np.exp2(optimum.low):.3g}"
        else:
            place = f"below {np.exp2(optimum.high):.3g}"
        reason = (
            f"the other {axis}s predict lr {np.exp2(expected):.3g} at {axis} {optimum.size}, but"
            f" its best lr is {place}"
        )
        raise InputError(f"{start}{reason}; {remedy}", "no-learning-rate", argument=axis)
