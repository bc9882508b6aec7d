"""Transfer study: best learning rate by size, its drift, a verdict, settings for a larger model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.optimizers.table import name_in_label
from orderone.planning import Plan
from orderone.sweeping.curves import Curves, rate_columns, read_curves, selected
from orderone.sweeping.drift import (
    MOVES,
    TRANSFERS,
    UNKNOWN,
    Drift,
    judge,
    predicted_drift,
    roles_with_rate,
)
from orderone.sweeping.inputs import Build, Frame
from orderone.sweeping.job import call_build, read_built
from orderone.sweeping.optimum import INSIDE, REACH, Curve, Optimum, optimum
from orderone.sweeping.target import Target, target
from orderone.sweeping.trial import Scalar, setting_of, tuned_name

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.25  # octaves per doubling; over four doublings, a factor of two
COLUMNS = (
    "rule",
    "size",
    "lr",
    "low",
    "high",
    "loss",
    "bend",
    "regret",
    "beyond",
    "seeds",
    "rates",
    "outside",
)


@dataclass(frozen=True)
class Transfer:
    """Result of a transfer study; print it for a summary.

    `frame` has the best learning rates, `drifts` the verdicts, and `target(width=...)` returns
    settings for a larger model.
    """

    axis: str  # width or depth
    curves: Curves = field(repr=False)
    optima: Mapping[str, Sequence[Optimum]] = field(repr=False)
    drift: Mapping[str, Drift]
    optimizer: str
    base: int
    tolerance: float
    confidence: float
    notes: Sequence[str] = ()
    options: Mapping[str, object] = field(default_factory=dict)  # options of `plan`
    build: Build | None = field(default=None, repr=False)
    held: Mapping[str, int] = field(default_factory=dict)  # the other size, if models have two
    setting: str = "lr"  # the learning rate whose optimum is studied: lr or lr.embedding
    rates: Mapping[str, float] = field(default_factory=dict)  # the others, which are constant

    @staticmethod
    def from_frame(
        frame: Frame,
        *,
        over: Name | None = None,
        setting: Name | None = None,
        where: Mapping[str, object] | None = None,
        tolerance: Number = TOLERANCE,
        confidence: Number = 0.95,
        optimizer: Name | None = None,
        base: Count | None = None,
        options: Mapping[str, object] | None = None,
        build: Build | None = None,
    ) -> "Transfer":
        """Make a study from a table of trainings.

        Args:
            frame: One row per training with the columns width or depth, lr, loss, and optionally
                rule and seed. `diverged` (or a loss that is not finite) marks runs that diverged.
                Rows whose `status` is failed or stopped are left out.
            over: "width" or "depth"; by default the one that varies.
            setting: The learning rate to study: "lr", or one of a role or pattern such as
                "lr.embedding"; by default the one that varies.
            where: Values of other settings, such as {"weight_decay": 0.1}, if there are several.
            tolerance: Largest drift that counts as none, in octaves of lr per doubling of the size.
            confidence: Confidence level of the intervals.
            optimizer: Optimizer of the predicted drift; by default that of the frame, or adamw.
            base: Size that `lr` is meant for; by default the smallest.
            options: Other settings of `plan` for the target: weight_decay, depth, ...
            build: Function of the size that returns the model, for `save_plan`.
        """
        tolerance = real(tolerance, "tolerance", above=0)
        confidence = real(confidence, "confidence", above=0, most=0.9999)
        axis, setting, curves, notes = read_curves(frame, over, where or {}, setting)
        used: str = optimizer or _only(frame, "optimizer") or "adamw"
        rows = selected(frame, where or {})
        rates = _constants(rows, [name for name in rate_columns(rows) if name != setting])
        options = _options(rows) | dict(options or {})
        optima: dict[str, list[Optimum]] = {}
        drifts: dict[str, Drift] = {}
        sizes: list[int] = []
        depth_rule = cast("str | None", options.get("depth"))
        roles = roles_with_rate(setting, list(rates))
        for rule, curves_of_rule in curves.items():
            optima[rule] = [optimum(curve, confidence) for curve in curves_of_rule]
            sizes += [curve.size for curve in curves_of_rule]
            drifts[rule] = judge(
                rule,
                optima[rule],
                min(len(curve.x) for curve in curves_of_rule),
                predicted_drift(rule, name_in_label(used), axis, depth_rule, roles),
                tolerance,
                confidence,
                axis,
            )
        return Transfer(
            axis=axis,
            curves=curves,
            optima=optima,
            drift=drifts,
            optimizer=used,
            base=min(sizes) if base is None else count(base, "base"),
            tolerance=tolerance,
            confidence=confidence,
            notes=notes,
            options=options,
            build=build,
            held=_held_size(frame, axis, where or {}),
            setting=setting,
            rates=cast("dict[str, float]", rates),  # learning rates are numbers
        )

    # --- reading ----------------------------------------------------------------------------------

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self.drift)

    @property
    def chosen(self) -> str:
        """Recommended rule: one that transfers, else one without a verdict, else any.

        If there are several without a verdict, those for which theory predicts a drift come last;
        then it is the one with the lowest loss at the largest size.
        """
        order = (TRANSFERS, UNKNOWN, MOVES)

        def rank(rule: str) -> tuple[int, bool, float]:
            drift = self.drift[rule]
            undecided = drift.verdict == UNKNOWN
            drifts = undecided and drift.should_move(self.tolerance)
            return order.index(drift.verdict), drifts, self.optima[rule][-1].loss

        return min(self.rules, key=rank)

    @property
    def verdict(self) -> str:
        """Verdict on the recommended rule."""
        return self.drift[self.chosen].verdict

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """One row per rule and size, with the best lr and its interval from `low` to `high`.

        `regret` is the extra loss when using the best lr of the smallest size. `outside` says on
        which side the interval reaches outside the grid: below, above, both, or nothing.
        """
        import pandas as pd

        rows: list[tuple[object, ...]] = []
        for rule in self.rules:
            for k in range(len(self.optima[rule])):
                rows.append(self._row(rule, k))
        return pd.DataFrame(rows, columns=list(COLUMNS)).rename(columns={"size": self.axis})

    def _row(self, rule: str, k: int) -> tuple[object, ...]:
        best = self.optima[rule][k]
        curve = self.curves[rule][k]
        with np.errstate(over="ignore"):
            lr = float(2.0**best.x)
            low = float(2.0**best.low)
            high = float(2.0**best.high)
        return (
            rule,
            best.size,
            lr,
            low,
            high,
            best.loss,
            best.bend,
            self.regret(rule, k),
            best.beyond,
            best.seeds,
            len(curve.x),
            _outside(best),
        )

    def regret(self, rule: str, k: int) -> float:
        """Return the extra loss of the k-th size with the best learning rate of the smallest size.

        It is nan if one of the two optima is unknown.
        """
        first = self.optima[rule][0]
        best = self.optima[rule][k]
        if first.beyond != INSIDE or best.beyond != INSIDE:
            return float("nan")
        return excess(self.curves[rule][k], best, first.x)

    @cached_property
    def drifts(self) -> "pd.DataFrame":
        """One row per rule: drift in octaves of lr per doubling, interval, prediction, verdict.

        The predictions are for full and for worst alignment.
        """
        import pandas as pd

        rows: list[tuple[object, ...]] = []
        for drift in self.drift.values():
            interval = (drift.slope, drift.low, drift.high)
            words = (drift.verdict, drift.why, drift.remedy)
            rows.append((drift.rule, *interval, *drift.predicted, *words))
        names = [
            "rule",
            "drift",
            "low",
            "high",
            "predicted",
            "predicted_worst",
            "verdict",
            "why",
            "remedy",
        ]
        return pd.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        from orderone.sweeping.transfer_text import headline, verdicts

        return f"<Transfer {verdicts(self)}; {headline(self)}>"

    def _repr_html_(self) -> str:
        """Return the verdicts and both tables for notebooks."""
        from orderone.sweeping.transfer_text import notebook

        return notebook(self)

    def __str__(self) -> str:
        from orderone.sweeping.transfer_text import render

        return render(self)

    # --- using ------------------------------------------------------------------------------------

    def target(
        self, *, width: Count | None = None, depth: Count | None = None, rule: Name | None = None
    ) -> Target:
        """Return settings for a model of this size, for the recommended rule or for `rule`."""
        if self.axis == "width":
            size = width
            other = depth
        else:
            size = depth
            other = width
        if size is None or other is not None:
            raise InputError(
                f"target: this study compares {self.axis}s; pass {self.axis}=..., and no other"
                " size",
                argument=self.axis,
            )
        size = count(size, self.axis)
        if rule is None:
            rule = self.chosen
        if rule not in self.drift:
            raise InputError(
                f"rule: expected one of {', '.join(self.rules)}, got {rule!r}",
                "unknown-name",
                argument="rule",
            )
        return target(
            self.optima[rule],
            self.drift[rule],
            axis=self.axis,
            size=size,
            base=self.base,
            tolerance=self.tolerance,
            optimizer=self.optimizer,
            options=self.options,
            held=self.held,
            setting=self.setting,
            rates=self.rates,
        )

    def save_plan(
        self,
        path: str | PathLike[str],
        build: Build | None = None,
        *,
        rule: Name | None = None,
        optimizer: type[Optimizer] | None = None,
        **size: Count | None,
    ) -> Plan:
        """Save the plan for the target; models are built on the meta device, without memory.

        A study with a custom optimizer class needs that class here.
        """
        build = build or self.build
        if build is None:
            raise InputError(
                f"build: expected a function of the {self.axis} that returns a model; pass"
                " build=...",
                "wrong-type",
                argument="build",
            )
        settings = self.target(rule=rule, **size)
        with torch.device("meta"):
            large = read_built(call_build(build, {**self.held, self.axis: settings.size}, {})).model
            base = read_built(call_build(build, {**self.held, self.axis: self.base}, {})).model
        made = settings.plan(large, base, optimizer)
        made.save(path)
        return made


def _outside(best: Optimum) -> str:
    if best.open_below and best.open_above:
        return "both"
    if best.open_below:
        return "below"
    return "above" if best.open_above else ""


def _held_size(frame: Frame, axis: str, where: Mapping[str, Any]) -> dict[str, int]:
    """Return the depth if all widths share one, or the width if all depths share one."""
    other = "depth" if axis == "width" else "width"
    if other in where:
        sizes = [where[other]]
    elif other in frame:
        sizes = set(frame[other].dropna())
    else:
        sizes = ()
    if len(sizes) == 1:
        return {other: int(next(iter(sizes)))}
    return {}


def excess(curve: Curve, best: Optimum, x: float) -> float:
    """Return the loss at x minus the smallest loss.

    Near the optimum this is the parabola; elsewhere it is interpolated between grid points.
    """
    if abs(x - best.x) <= REACH and np.isfinite(np.interp(x, curve.x, curve.mean)):
        return float(max(best.bend, 0.0) * (x - best.x) ** 2)
    right = int(np.searchsorted(curve.x, x).clip(1, len(curve.x) - 1))
    before = curve.mean[right - 1]
    after = curve.mean[right]
    share = float(np.clip((x - curve.x[right - 1]) / (curve.x[right] - curve.x[right - 1]), 0, 1))
    if share == 0:
        there = before
    elif share == 1:
        there = after
    else:
        there = before * (1 - share) + after * share
    return float(max(there - best.loss, 0.0))


def _only(frame: Frame, name: str) -> Any:
    """Return the value of a column if all rows have the same, otherwise None."""
    if name not in frame:
        return None
    column = cast("pd.Series", frame[name])
    if column.nunique() != 1:
        return None
    return column.iloc[0]


def _options(rows: Frame) -> dict[str, object]:
    """Return the settings of `plan` that the trainings share, apart from learning rates."""
    options: dict[str, object] = {}
    for name in ("weight_decay", "eps", "init_scale", "init"):
        columns = [str(column) for column in rows if tuned_name(str(column)) == name]
        value = setting_of(_constants(rows, columns), name)
        if value is not None:
            options[name] = value
    return options


def _constants(rows: Frame, names: Sequence[str]) -> dict[str, Scalar]:
    """Return the values of these columns that all rows share."""
    constants: dict[str, Scalar] = {}
    for name in names:
        value = _only(rows, name)
        if value is not None:
            constants[name] = value if isinstance(value, str) else float(value)
    return constants


__all__ = ["MOVES", "TRANSFERS", "UNKNOWN", "Transfer"]
