"""Settings for a size that was not tuned: learning rate, reason, and expected extra loss.

Let x = log2(learning rate), x* the best x of a size, and k the number of doublings from the size
that x was taken from to the target:

    Using x at the target costs a (x*(target) - x)^2, and x* moves by drift k in k doublings, so
    on average regret = a ((drift k)^2 + (error of the drift)^2 k^2)

with the bend a of the loss at the largest size that was run. If the trainings contradict every
learning rate that could be used, `target` raises an error with the reason. An optimum beyond the
grid is still known to lie on one side of it. A drift outside the tolerance, even without enough
data, does not justify using the same rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, without_code
from orderone.core.text_table import wrapped
from orderone.optimizers.table import name_in_label
from orderone.planning import Plan, plan
from orderone.sweeping.drift import MOVES, TRANSFERS, Drift
from orderone.sweeping.optimum import ABOVE, INSIDE, Optimum
from orderone.sweeping.trial import setting_of

POOLED = "pooled"
LARGEST = "largest"
EXTRAPOLATED = "extrapolated"
# octaves, for a grid of ratio 2: the best point of the grid is the last one if the optimum is this
# close to it
HALF_A_STEP = 0.5


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

    @property
    def rates_for_plan(self) -> float | dict[str, float]:
        """Learning rates as `plan` takes them: a number, or a mapping."""
        rates = setting_of({**self.rates, self.setting: self.lr}, "lr")
        assert rates is not None  # it has at least `self.lr`
        return rates

    @property
    def snippet(self) -> str:
        """Code that makes the plan, the model and the optimizer."""
        settings = (
            f'rule="{self.rule}", optimizer={self._optimizer}, lr={_code(self.rates_for_plan)}'
        )
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
        chosen = self.optimizer if optimizer is None else optimizer
        return plan(
            model,
            base=base,
            rule=self.rule,
            optimizer=chosen,
            lr=self.rates_for_plan,
            **self.options,
        )

    def __str__(self) -> str:
        lines = [f"{self.rule} at {self.axis} {self.size}: {self.setting} {self.lr:.3g}"]
        lines += [*wrapped(self.why), *wrapped(self.outlook)]
        lines += [f"  {line}" for line in self.snippet.splitlines()]
        return "\n".join(lines)

    @property
    def outlook(self) -> str:
        """Sentence on the best learning rate of that size, and on the expected extra loss."""
        best = f"the best {self.setting} of {self.axis} {self.size}"
        if not np.isfinite(self.regret):
            return f"{best} cannot be estimated from these trainings"
        return (
            f"{best} is expected between {self.low:.3g} and {self.high:.3g};"
            f" using {self.lr:.3g} instead costs about {self.regret:.2g} in loss"
        )


def _code(rates: float | Mapping[str, float]) -> str:
    if not isinstance(rates, Mapping):
        return f"{rates:.4g}"
    entries = [f'"{key}": {value:.4g}' for key, value in rates.items()]
    return f"{{{', '.join(entries)}}}"


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
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    if not inside:
        raise InputError(
            f"{drift.rule}: no learning rate can be named for {axis} {size}: no {axis} has its best"
            f" learning rate inside the grid; {without_code(drift.remedy)}",
            "no-learning-rate",
            argument=axis,
        )
    x, at, source, why = _choice(inside, drift, axis, size)
    _check_evidence(optima, drift, x, axis, size, tolerance)
    doublings = float(np.log2(size) - at)
    ends, squared = _forecast(x, doublings, drift, source)
    largest = max(inside, key=lambda optimum: optimum.size)
    return Target(
        rule=drift.rule,
        optimizer=optimizer,
        axis=axis,
        size=size,
        base=base,
        lr=float(np.exp2(x)),
        low=float(np.exp2(min(ends))),
        high=float(np.exp2(max(ends))),
        source=source,
        why=why,
        regret=float(max(largest.bend, 0.0) * squared),
        verdict=drift.verdict,
        options=dict(options),
        held=dict(held),
        setting=setting,
        rates=dict(rates),
    )


def _forecast(x: float, k: float, drift: Drift, source: str) -> tuple[list[float], float]:
    """Return the two ends of the interval of x* after k doublings, and the mean of (x* - x)^2."""
    slope = drift.slope if np.isfinite(drift.slope) else 0.0
    moved = 0.0 if source == EXTRAPOLATED else slope * k
    if not k:  # an unknown drift (inf) costs nothing here
        return [x + moved, x + moved], moved**2
    ends = [x + moved + k * (drift.low - slope), x + moved + k * (drift.high - slope)]
    return ends, moved**2 + (drift.error * k) ** 2


def _choice(
    inside: Sequence[Optimum], drift: Drift, axis: str, size: int
) -> tuple[float, float, str, str]:
    """Return log2(lr), log2 of the size that it belongs to, its source, and the reason."""
    largest = max(inside, key=lambda optimum: optimum.size)
    top = float(np.log2(largest.size))
    if drift.verdict == TRANSFERS and drift.low <= 0 <= drift.high:
        weights = [1 / (optimum.noise**2 + optimum.resolution**2) for optimum in inside]
        x = float(np.average([optimum.x for optimum in inside], weights=weights))
        doublings = np.log2([optimum.size for optimum in inside])
        at = float(np.average(doublings, weights=weights))
        return x, at, POOLED, f"the weighted mean over all {axis}s, since no drift was detected"
    if drift.verdict == TRANSFERS:
        return (
            largest.x,
            top,
            LARGEST,
            f"the best lr of {axis} {largest.size}, the nearest, since a small drift was detected",
        )
    if drift.verdict == MOVES:
        x = largest.x + drift.slope * (float(np.log2(size)) - top)
        return (
            x,
            top,
            EXTRAPOLATED,
            f"extrapolated by {drift.slope:+.2f} octaves per doubling, since the best lr moves",
        )
    return (
        largest.x,
        top,
        LARGEST,
        f"the best lr of {axis} {largest.size}, the nearest; transfer is not established",
    )


def _check_evidence(
    optima: Sequence[Optimum], drift: Drift, x: float, axis: str, size: int, tolerance: float
) -> None:
    """Raise an InputError if the trainings contradict log2(lr) = x at this size."""
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    largest = max(inside, key=lambda optimum: optimum.size)
    if drift.verdict == TRANSFERS or size == largest.size:
        return
    start = f"{drift.rule}: no learning rate can be named for {axis} {size}: "
    remedy = without_code(drift.remedy) or "widen the grid of learning rates"
    if drift.verdict != MOVES and (drift.low > tolerance or drift.high < -tolerance):
        reason = (
            f"the best lr seems to move by {drift.slope:+.2f} octaves per doubling, but this is not"
            f" certain: {drift.why}"
        )
        raise InputError(f"{start}{reason}; {remedy}", "no-learning-rate", argument=axis)
    for optimum in optima:
        if optimum.beyond == INSIDE:
            continue
        expected = x
        if drift.verdict == MOVES:
            expected = largest.x + drift.slope * float(np.log2(optimum.size / largest.size))
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
