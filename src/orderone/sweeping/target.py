"""Settings for the size that was not tuned: which learning rate, why that one, and what it may
cost.

    keeping x at the target costs a (x*(target) - x)^2, and x* moves by drift k in k doublings, so
    on average regret = a ((drift k)^2 + (error of the drift)^2 k^2)

with the bend a of the largest size that was run, which is the nearest there is. Where the trainings
speak against every rate that could be carried over, there are no settings but a reason: an optimum
beyond the grid is still known to lie on one side of it, and a drift outside the tolerance that
lacks data is no reason to keep a rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from orderone.optimizers.table import name_in_label
from orderone.planning import Plan, plan
from orderone.sweeping.drift import MOVES, TRANSFERS, Drift
from orderone.sweeping.optimum import ABOVE, INSIDE, Optimum

POOLED = "pooled"
LARGEST = "largest"
EXTRAPOLATED = "extrapolated"
HALF_A_STEP = 0.5  # octaves: an optimum that much inside a grid of ratio 2 is seen at its end


@dataclass(frozen=True)
class Target:
    """Print it; `snippet` is code to paste, `plan` the plan for a model of that size."""

    rule: str
    optimizer: str
    axis: str
    size: int
    base: int
    lr: float
    low: float  # where the target's own optimum is expected
    high: float
    source: str
    why: str
    regret: float
    verdict: str
    options: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)  # the other size, if models have two

    @property
    def snippet(self) -> str:
        settings = f'rule="{self.rule}", optimizer={self._optimizer}, lr={self.lr:.4g}'
        for name, value in self.options.items():
            if value is not None:
                settings += f", {name}={value!r}"
        return (
            f"plan = o1.plan({self._built(self.size)}, base={self._built(self.base)}, {settings})\n"
            "model, optimizer = plan.apply(), plan.optimizer()"
        )

    @property
    def _optimizer(self) -> str:
        """As code: a name in quotes, or the name of the user's own class."""
        if name_in_label(self.optimizer) == self.optimizer:
            return f'"{self.optimizer}"'
        return self.optimizer.rstrip(")").rpartition(".")[2]

    def _built(self, size: int) -> str:
        """`build(64)`, or `build(width=64, depth=4)` where models have both."""
        if not self.held:
            return f"build({size})"
        sizes = {**self.held, self.axis: size}
        named = ", ".join(f"{name}={value}" for name, value in sizes.items())
        return f"build({named})"

    def plan(self, model: nn.Module, base: Any, optimizer: type[Optimizer] | None = None) -> Plan:
        """For a model of this size, relative to one of the base's size (the meta device is fine for
        both).

        A study with an optimizer class of your own needs that class here.
        """
        chosen = self.optimizer if optimizer is None else optimizer
        return plan(model, base=base, rule=self.rule, optimizer=chosen, lr=self.lr, **self.options)

    def __str__(self) -> str:
        first = f"{self.rule} at {self.axis} {self.size}: lr {self.lr:.3g}, {self.why}"
        lines = [first, f"  {self.outlook}"]
        lines += [f"  {line}" for line in self.snippet.splitlines()]
        return "\n".join(lines)

    @property
    def outlook(self) -> str:
        if not np.isfinite(self.regret):
            return "where its own optimum is cannot be said from these trainings"
        return (
            f"its own optimum is expected between {self.low:.3g} and {self.high:.3g}; keeping"
            f" {self.lr:.3g} costs about {self.regret:.2g} in loss"
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
) -> Target:
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    if not inside:
        raise ValueError(
            f"{drift.rule}: no {axis} has its optimum within the grid, so there is nothing to carry"
            f" over; {drift.remedy}"
        )
    x, at, source, why = _choice(inside, drift, axis, size)
    _agreed(optima, drift, x, axis, size, tolerance)
    k = float(np.log2(size) - at)
    slope = drift.slope if np.isfinite(drift.slope) else 0.0
    moved = 0.0 if source == EXTRAPOLATED else slope * k
    ends = [x + moved, x + moved]
    variance = 0.0
    if k:  # at k = 0 an unknown drift (inf) costs nothing
        ends = [x + moved + k * (drift.low - slope), x + moved + k * (drift.high - slope)]
        variance = (drift.error * k) ** 2
    largest = max(inside, key=lambda optimum: optimum.size)
    regret = float(max(largest.bend, 0.0) * (moved**2 + variance))
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
        regret=regret,
        verdict=drift.verdict,
        options=dict(options),
        held=dict(held),
    )


def _choice(
    inside: Sequence[Optimum], drift: Drift, axis: str, size: int
) -> tuple[float, float, str, str]:
    """Return log2(lr), log2 of the size that it belongs to, its source, and why."""
    largest = max(inside, key=lambda optimum: optimum.size)
    top = float(np.log2(largest.size))
    if drift.verdict == TRANSFERS and drift.low <= 0 <= drift.high:
        weights = [1 / (optimum.noise**2 + optimum.resolution**2) for optimum in inside]
        x = float(np.average([optimum.x for optimum in inside], weights=weights))
        doublings = np.log2([optimum.size for optimum in inside])
        at = float(np.average(doublings, weights=weights))
        return x, at, POOLED, f"pooled over the {axis}s, since no drift is seen between them"
    if drift.verdict == TRANSFERS:
        return (
            largest.x,
            top,
            LARGEST,
            f"the optimum of {axis} {largest.size}, the nearest: a small drift is seen",
        )
    if drift.verdict == MOVES:
        x = largest.x + drift.slope * (float(np.log2(size)) - top)
        return (
            x,
            top,
            EXTRAPOLATED,
            f"extrapolated by {drift.slope:+.2f} octaves per doubling: the optimum moves",
        )
    return (
        largest.x,
        top,
        LARGEST,
        f"the optimum of {axis} {largest.size}, the nearest; transfer is not shown",
    )


def _agreed(
    optima: Sequence[Optimum], drift: Drift, x: float, axis: str, size: int, tolerance: float
) -> None:
    """Raise a ValueError where the trainings speak against log2(lr) = x at this size."""
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    largest = max(inside, key=lambda optimum: optimum.size)
    if drift.verdict == TRANSFERS or size == largest.size:
        return
    start = f"{drift.rule}: no learning rate can be named for {axis} {size}: "
    remedy = f"; {drift.remedy}" if drift.remedy else ""
    if drift.verdict != MOVES and (drift.low > tolerance or drift.high < -tolerance):
        reason = (
            f"the optimum seems to move by {drift.slope:+.2f} octaves per doubling, but {drift.why}"
        )
        raise ValueError(f"{start}{reason}{remedy}")
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
            f"{np.exp2(expected):.3g} would be expected at {axis} {optimum.size}, whose optimum is"
            f" {place}"
        )
        raise ValueError(f"{start}{reason}{remedy or '; widen the grid of learning rates'}")
