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
        others = "".join(
            f", {name}={value!r}" for name, value in self.options.items() if value is not None
        )
        asked = f'rule="{self.rule}", optimizer={self._optimizer}, lr={self.lr:.4g}{others}'
        return (
            f"plan = o1.plan({self._built(self.size)}, base={self._built(self.base)}, {asked})\n"
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
        named = ", ".join(
            f"{name}={value}" for name, value in {**self.held, self.axis: size}.items()
        )
        if self.held:
            return f"build({named})"
        return f"build({size})"

    def plan(self, model: nn.Module, base: Any, optimizer: type[Optimizer] | None = None) -> Plan:
        """For a model of this size, relative to one of the base's size (the meta device is fine for
        both).

        A study with an optimizer class of your own needs that class here.
        """
        chosen = self.optimizer if optimizer is None else optimizer
        return plan(model, base=base, rule=self.rule, optimizer=chosen, lr=self.lr, **self.options)

    def __str__(self) -> str:
        first = f"{self.rule} at {self.axis} {self.size}: lr {self.lr:.3g}, {self.why}"
        return "\n".join(
            [first, f"  {self.outlook}", *(f"  {line}" for line in self.snippet.splitlines())]
        )

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
    inside = [o for o in optima if o.beyond == INSIDE]
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
    low, high = sorted(
        x + moved + (k * (edge - slope) if k else 0.0) for edge in (drift.low, drift.high)
    )
    largest = max(inside, key=lambda o: o.size)
    regret = float(max(largest.bend, 0.0) * (moved**2 + ((drift.error * k) ** 2 if k else 0.0)))
    lr, low, high = (float(np.exp2(value)) for value in (x, low, high))
    return Target(
        drift.rule,
        optimizer,
        axis,
        size,
        base,
        lr,
        low,
        high,
        source,
        why,
        regret,
        drift.verdict,
        dict(options),
        dict(held),
    )


def _choice(
    inside: Sequence[Optimum], drift: Drift, axis: str, size: int
) -> tuple[float, float, str, str]:
    """log2(lr), the doublings at which it was found, which it is, and why."""
    largest = max(inside, key=lambda o: o.size)
    top = float(np.log2(largest.size))
    if drift.verdict == TRANSFERS and drift.low <= 0 <= drift.high:
        weights = np.array([1 / (o.noise**2 + o.resolution**2) for o in inside])
        x, at = (
            float(np.average(v, weights=weights))
            for v in ([o.x for o in inside], np.log2([o.size for o in inside]))
        )
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
    """A ValueError where the trainings speak against log2(lr) = x at this size."""
    largest = max((o for o in optima if o.beyond == INSIDE), key=lambda o: o.size)
    if drift.verdict == TRANSFERS or size == largest.size:
        return
    start = f"{drift.rule}: no learning rate can be named for {axis} {size}: "
    remedy = f"; {drift.remedy}" if drift.remedy else ""
    if drift.verdict != MOVES and (drift.low > tolerance or drift.high < -tolerance):
        told = (
            f"the optimum seems to move by {drift.slope:+.2f} octaves per doubling, but {drift.why}"
        )
        raise ValueError(f"{start}{told}{remedy}")
    for o in optima:
        if drift.verdict != MOVES:
            there = x
        else:
            there = largest.x + drift.slope * float(np.log2(o.size / largest.size))
        if o.beyond != INSIDE and not o.low - HALF_A_STEP <= there <= o.high + HALF_A_STEP:
            side, edge = ("above", o.low) if o.beyond == ABOVE else ("below", o.high)
            told = (
                f"{np.exp2(there):.3g} would be expected at {axis} {o.size}, whose optimum is"
                f" {side} {np.exp2(edge):.3g}"
            )
            raise ValueError(f"{start}{told}{remedy or '; widen the grid of learning rates'}")
