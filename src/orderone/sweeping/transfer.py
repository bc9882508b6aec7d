"""Transfer study: best learning rate by size, its drift, a verdict, settings for a larger model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.core.text_table import printable
from orderone.optimizers.table import name_in_label
from orderone.planning import Plan
from orderone.sweeping import quality as measures
from orderone.sweeping.collapse import Collapse, collapse
from orderone.sweeping.curves import (
    Curves,
    normal_rows,
    rate_columns,
    read_curves,
    selected,
)
from orderone.sweeping.drift import (
    MOVES,
    TRANSFERS,
    UNKNOWN,
    Drift,
    judge,
    predicted_drift,
    roles_with_rate,
)
from orderone.sweeping.forecast import Forecast, Point, forecast
from orderone.sweeping.inputs import Build, Frame
from orderone.sweeping.job import call_build, read_built
from orderone.sweeping.optimum import INSIDE, Optimum, excess, optimum
from orderone.sweeping.study_frame import (
    base_size,
    held_size,
    only_value,
    shared_options,
    shared_values,
)
from orderone.sweeping.target import Target, target

if TYPE_CHECKING:
    import pandas as pd

AMOUNTS_OF_DATA = ("steps", "tokens")  # these vary in a forecast for another number of tokens
TOLERANCE = 0.25  # octaves per doubling; over four doublings, a factor of two


@dataclass(frozen=True)
class Transfer:
    """Result of a transfer study; print it for a summary.

    `frame` has the best learning rates, `drifts` the verdicts, and `target(width=...)` returns
    settings for a larger model. `forecast(width=...)` returns its expected loss, `collapse()`
    compares the loss curves of the sizes, and `quality` has measures of the transfer.
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
    frame_of_trainings: Frame | None = field(default=None, repr=False)  # with all numbers of tokens
    where: Mapping[str, object] = field(default_factory=dict, repr=False)
    histories: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)  # by key

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
        histories: Mapping[str, np.ndarray] | None = None,
    ) -> "Transfer":
        """Make a study from a table of trainings.

        Args:
            frame: One row per training with the columns width or depth, lr, loss, and optionally
                rule and seed. `diverged` (or a loss that is not finite) marks runs that diverged.
                Rows whose `status` is failed or stopped are left out. `forecast(tokens=...)`
                reads the column tokens, and `collapse` the column key.
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
            histories: Training losses of every step, by the `key` of the training, for `collapse`.
        """
        tolerance = real(tolerance, "tolerance", above=0)
        confidence = real(confidence, "confidence", above=0, most=0.9999)
        axis, setting, curves, notes = read_curves(frame, over, where or {}, setting)
        used: str = optimizer or only_value(frame, "optimizer") or "adamw"
        rows = selected(frame, where or {})
        rates = shared_values(rows, [name for name in rate_columns(rows) if name != setting])
        options = shared_options(rows) | dict(options or {})
        optima: dict[str, list[Optimum]] = {}
        drifts: dict[str, Drift] = {}
        depth_rule = cast("str | None", options.get("depth"))
        roles = roles_with_rate(setting, list(rates))
        for rule, curves_of_rule in curves.items():
            optima[rule] = [optimum(curve, confidence) for curve in curves_of_rule]
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
            base=base_size(base, curves),
            tolerance=tolerance,
            confidence=confidence,
            notes=notes,
            options=options,
            build=build,
            held=held_size(frame, axis, where or {}),
            setting=setting,
            rates=cast("dict[str, float]", rates),  # learning rates are numbers
            frame_of_trainings=frame,
            where=dict(where or {}),
            histories=dict(histories or {}),
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
        from orderone.sweeping.transfer_tables import best_rates  # loads pandas

        return best_rates(self)

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
        from orderone.sweeping.transfer_tables import drifts

        return drifts(self.drift)

    @cached_property
    def quality(self) -> "pd.DataFrame":
        """One row per rule: how well it transfers (docs/transfer.md explains the columns).

        A number that the trainings do not support is nan, and `missing` says why.
        """
        import pandas as pd

        known = measures.limits(self.optima, self.axis, self.confidence)
        rows: list[tuple[object, ...]] = []
        for rule in self.rules:
            off, cost, missing = self._without_largest(rule)
            limit = known[rule]
            if isinstance(limit, InputError):
                missing.append(str(limit))
            penalty = measures.penalty(known, rule)
            record = measures.Quality(
                rule,
                *measures.scatter(self.optima[rule], self.drift[rule]),
                off,
                cost,
                measures.sharpening(self.optima[rule]),
                measures.behind(self.optima, rule),
                penalty.value,
                penalty.low,
                penalty.high,
                "; ".join(missing),
            )
            rows.append(astuple(record))
        return pd.DataFrame(rows, columns=measures.names())

    def _without_largest(self, rule: str) -> tuple[float, float, list[str]]:
        """Return what the settings for the largest size are worth if they are made without it.

        These are the error of the learning rate in octaves, its cost, and why they are unknown.
        """
        *rest, largest = self.optima[rule]
        unknown = (math.nan, math.nan)
        if not rest or largest.beyond != INSIDE:
            text = f"the largest {self.axis} has no best learning rate inside the grid"
            if not rest:
                text = f"one {self.axis} was run"
            return *unknown, [f"left out: {text}"]
        rates = min(len(curve.x) for curve in self.curves[rule])
        drift = judge(
            rule,
            rest,
            rates,
            self.drift[rule].predicted,
            self.tolerance,
            self.confidence,
            self.axis,
        )
        try:
            x = math.log2(self._target(rule, rest, drift, largest.size).lr)
        except InputError as error:
            return *unknown, [f"left out: {error}"]
        return x - largest.x, excess(self.curves[rule][-1], largest, x), []

    def __repr__(self) -> str:
        from orderone.sweeping.transfer_text import headline, verdicts

        return f"<Transfer {verdicts(self)}; {headline(self)}>"

    def _repr_html_(self) -> str:
        """Return the verdicts and both tables for notebooks."""
        from orderone.sweeping.transfer_text import notebook

        return notebook(self)

    def __str__(self) -> str:
        from orderone.sweeping.transfer_text import render

        return printable(render(self))

    # --- using ------------------------------------------------------------------------------------

    def target(
        self, *, width: Count | None = None, depth: Count | None = None, rule: Name | None = None
    ) -> Target:
        """Return settings for a model of this size, for the recommended rule or for `rule`."""
        size = self._size("target", width, depth)
        name = self._rule(rule)
        return self._target(name, self.optima[name], self.drift[name], size)

    def _size(self, function: str, width: Count | None, depth: Count | None) -> int:
        """Return the size of the target along the axis of the study."""
        if self.axis == "width":
            size = width
            other = depth
        else:
            size = depth
            other = width
        if size is None or other is not None:
            raise InputError(
                f"{function}: this study compares {self.axis}s; pass {self.axis}=..., and no other"
                " size",
                argument=self.axis,
            )
        return count(size, self.axis)

    def _rule(self, rule: str | None) -> str:
        """Return the rule, by default the recommended one."""
        if rule is None:
            return self.chosen
        if rule not in self.drift:
            raise InputError(
                f"rule: expected one of {', '.join(self.rules)}, got {rule!r}",
                "unknown-name",
                argument="rule",
            )
        return rule

    def _target(self, rule: str, optima: Sequence[Optimum], drift: Drift, size: int) -> Target:
        return target(
            optima,
            drift,
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

    def forecast(
        self,
        *,
        width: Count | None = None,
        depth: Count | None = None,
        tokens: Number | None = None,
        rule: Name | None = None,
    ) -> Forecast:
        """Return the loss that a model of this size is expected to reach, with its interval.

        The model is trained as those of the study, with its best learning rate. The loss of another
        number of tokens needs trainings with several (a sweep over steps).
        """
        size = self._size("forecast", width, depth)
        name = self._rule(rule)
        if tokens is None:
            amount = None
        else:
            amount = real(tokens, "tokens", above=0)
        points: list[Point] = [(None, best) for best in self.optima[name]]
        if amount is not None:
            points = self._points_by_tokens(name)
            amounts = {each for each, _ in points}
            if amounts == {amount}:
                amount = None
                points = [(None, best) for _, best in points]
        return forecast(
            name, points, axis=self.axis, size=size, tokens=amount, level=self.confidence
        )

    def _points_by_tokens(self, rule: str) -> list[Point]:
        """Return the optima of all sizes and numbers of tokens."""
        frame = self.frame_of_trainings
        if frame is None or "tokens" not in frame:
            raise InputError(
                "forecast: the number of tokens of the trainings is unknown; add a column tokens to"
                " the table, sweep the steps (space={'steps': [...]}), or leave out tokens=",
                "tokens-do-not-vary",
                argument="tokens",
            )
        where = {name: value for name, value in self.where.items() if name not in AMOUNTS_OF_DATA}
        rows = selected(frame, where)
        points: list[Point] = []
        for amount in sorted(set(cast("pd.Series", rows["tokens"]).dropna())):
            part = cast("pd.DataFrame", rows[rows["tokens"] == amount])
            _, _, curves, _ = read_curves(part, self.axis, {}, self.setting)
            for curve in curves.get(rule, []):
                points.append((float(amount), optimum(curve, self.confidence)))
        return points

    def collapse(
        self, *, rule: Name | None = None, lr: Number | None = None, offset: Number = 0.0
    ) -> Collapse:
        """Test whether the normalized loss curves of all sizes coincide within the noise of seeds.

        The curves are those of one learning rate of the grid: by default the one nearest to the
        best of the smallest size. `offset` is subtracted from all losses, for example an
        irreducible loss.
        """
        name = self._rule(rule)
        if not self.histories:
            raise InputError(
                "collapse: expected the training losses of every step, which this table does not"
                " have; call `transfer` of a sweep, or pass histories={key: losses} with a column"
                " key in the table",
                "needs-histories",
                argument="histories",
            )
        rate = self._carried_rate(name) if lr is None else real(lr, "lr", above=0)
        assert self.frame_of_trainings is not None  # histories come with a frame
        _, _, rows = normal_rows(self.frame_of_trainings, self.axis, self.where, self.setting)
        rows = rows[(rows["rule"] == name) & np.isclose(rows["lr"], rate, rtol=1e-6)]
        if not len(rows):
            raise InputError(
                f"lr: expected a learning rate of the grid, got {rate:g}", argument="lr"
            )
        runs: dict[int, list[np.ndarray]] = {}
        for row in rows.to_dict("records"):
            losses = self.histories.get(str(row["key"]))
            if losses is not None and np.isfinite(row["loss"]) and np.isfinite(losses).all():
                runs.setdefault(int(row[self.axis]), []).append(losses)
        return collapse(
            name,
            runs,
            axis=self.axis,
            lr=rate,
            offset=real(offset, "offset"),
            confidence=self.confidence,
        )

    def _carried_rate(self, rule: str) -> float:
        """Return the rate that all sizes were run with and that is nearest to the base's best."""
        shared = set.intersection(*(set(curve.x.tolist()) for curve in self.curves[rule]))
        first = self.optima[rule][0]
        if not shared or first.beyond != INSIDE:
            raise InputError(
                f"collapse: {rule} has no best learning rate at the smallest {self.axis}, or no"
                f" learning rate that all {self.axis}s were run with; pass lr=...",
                "no-learning-rate",
                argument="lr",
            )
        return float(2.0 ** min(shared, key=lambda x: abs(x - first.x)))

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


__all__ = ["MOVES", "TRANSFERS", "UNKNOWN", "Transfer"]
