"""Several transfer studies: one for each combination of the settings of a sweep.

A transfer study varies the size, the learning rate, the rule and the seed. If a sweep also varies
weight decay, the start or other settings, each combination of their values has a study of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from orderone.core.errors import InputError
from orderone.core.text_table import printable, text_table, wrapped
from orderone.sweeping.curves import FREE, Rows, rate_columns
from orderone.sweeping.optimum import Curve
from orderone.sweeping.transfer import Transfer
from orderone.sweeping.trial import RESULTS, SIZES, in_order

if TYPE_CHECKING:
    import pandas as pd

NOT_SETTINGS = (*RESULTS, *FREE, "tokens")


@dataclass(frozen=True)
class Arrangement:
    """Common axis and setting of the studies of a sweep, and combinations of the other settings."""

    axis: str  # width or depth
    setting: str  # the learning rate: lr or lr.embedding
    combinations: Sequence[Mapping[str, object]]  # one empty combination if nothing else varies


def arrange(frame: Rows) -> Arrangement:
    """Choose axis and learning rate of the studies; the other settings that vary are combined.

    The axis is the size with the most values, the width if both have as many. In the same way, the
    learning rate is the one with the most values, or `lr`.
    """
    axis = _with_most_values(frame, SIZES)
    setting = _with_most_values(frame, sorted(rate_columns(frame)))
    others: list[str] = []
    for name in in_order(map(str, frame)):
        if name in (*NOT_SETTINGS, axis, setting):
            continue
        if frame[name].nunique(dropna=False) > 1:
            others.append(name)
    if not others:
        return Arrangement(axis, setting, [{}])
    combinations: list[Mapping[str, object]] = []
    for row in frame[others].drop_duplicates().itertuples(index=False):
        combinations.append({name: _plain(row[k]) for k, name in enumerate(others)})
    return Arrangement(axis, setting, combinations)


def _with_most_values(frame: Rows, names: Sequence[str]) -> str:
    present = [name for name in names if name in frame]
    return max(present, key=lambda name: frame[name].nunique())  # the first of equals


def _plain(value: Any) -> object:
    """Return a value of a frame as a Python value; None for a missing one."""
    if value is None or value != value:  # nan
        return None
    return value.item() if hasattr(value, "item") else value


@dataclass(frozen=True)
class Carried:
    """Loss at the largest size with the best learning rate of the smallest; both are of the grid.

    Losses are means over seeds at the largest size, inf if one of them diverged.
    """

    lr: float
    loss: float  # with this learning rate; nan if the largest size was not trained with it
    tuned: float  # with its own best learning rate


def carried(curves: Sequence[Curve]) -> Carried:
    """Compare the smallest size with the largest; curves are ordered by size."""
    smallest = curves[0]
    largest = curves[-1]
    x = smallest.x[np.argmin(smallest.mean)]
    same = np.isclose(largest.x, x)
    if same.any():
        loss = float(largest.mean[same][0])
    else:
        loss = math.nan
    return Carried(float(2.0**x), loss, float(largest.mean.min()))


@dataclass(frozen=True)
class Transfers:
    """Transfer studies of all combinations of settings; print it for one line per study.

    `studies` begins with the lowest loss of the largest size, with the learning rate that was best
    at the smallest size: the loss that you get if you tune only the small model.
    """

    studies: Sequence[Transfer]
    failed: Mapping[str, str]  # by combination: why it has no study

    @staticmethod
    def from_frame(frame: Rows, **options: Any) -> "Transfers":
        """Make the studies; `options` are those of `Transfer.from_frame`, without `where`."""
        arrangement = arrange(frame)
        fixed = {"over": arrangement.axis, "setting": arrangement.setting, **options}
        studies: list[Transfer] = []
        failed: dict[str, str] = {}
        errors: list[InputError] = []
        for where in arrangement.combinations:
            try:
                studies.append(Transfer.from_frame(frame, where=where, **fixed))
            except InputError as error:
                failed[described(where)] = str(error)
                errors.append(error)
        if not studies:
            raise errors[0]
        return Transfers(sorted(studies, key=_rank), failed)

    @property
    def best(self) -> Transfer:
        return self.studies[0]

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """One row per combination and rule: `lr`, `loss` and `tuned` as in `Carried`, the drift."""
        import pandas as pd

        rows: list[dict[str, object]] = []
        for study in self.studies:
            for rule in study.rules:
                drift = study.drift[rule]
                costs = carried(study.curves[rule])
                row: dict[str, object] = {**study.where, "rule": rule, **asdict(costs)}
                row |= {"drift": drift.slope, "low": drift.low, "high": drift.high}
                rows.append(row | {"verdict": drift.verdict})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        best = described(self.best.where)
        return f"<Transfers of {len(self.studies)} combinations; best: {best}>"

    def __str__(self) -> str:
        """Return a table with one line per combination and rule, the lowest loss first."""
        axis = self.best.axis
        sizes = [curve.size for curves in self.best.curves.values() for curve in curves]
        rows: list[tuple[str, ...]] = [("settings", "rule", "lr", "loss", "tuned", "verdict")]
        for study in self.studies:
            for rule in study.rules:
                costs = carried(study.curves[rule])
                numbers = [f"{value:.4g}" for value in astuple(costs)]
                rows.append((described(study.where), rule, *numbers, study.drift[rule].verdict))
        lines = text_table(rows)
        for combination, reason in self.failed.items():
            lines += wrapped(f"{combination}: no study: {reason}", indent=0)
        legend = (
            f"lr: best value of the grid at {axis} {min(sizes)}; loss: loss at {axis} {max(sizes)}"
            f" with this lr; tuned: lowest loss at {axis} {max(sizes)}"
        )
        return printable("\n".join([*lines, *wrapped(legend, indent=0)]))


def _rank(study: Transfer) -> tuple[bool, float]:
    """Order studies by the loss that a user gets with the recommended rule; nan comes last."""
    loss = carried(study.curves[study.chosen]).loss
    return math.isnan(loss), loss


def described(where: Mapping[str, object]) -> str:
    """Return `init=fan-in, beta2=0.99`."""
    return ", ".join(f"{name}={_value(value)}" for name, value in where.items())


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
