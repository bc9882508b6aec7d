"""Read a tidy frame (one row per training: width or depth, rule, lr, seed, loss) into curves.

A curve has the losses of one size by seed and learning rate.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from orderone.core.errors import InputError, one_of, with_code
from orderone.sweeping.optimum import Curve
from orderone.sweeping.trial import KNOWN, RESULTS, SIZES, in_order, tuned_name

if TYPE_CHECKING:
    import pandas as pd

LEFT_OUT = ("failed", "stopped")  # these have no loss at the end of training
FREE = ("rule", "seed", "data_seed")  # may vary in a study; all else must be constant
NO = ("false", "no", "0", "0.0", "", "nan", "none", "<na>")
# A DataFrame and a Series; `_checked` makes sure of that. The type stubs of pandas do not
# distinguish them: they say that a column of a frame may be a frame.
Rows: TypeAlias = Any
Column: TypeAlias = Any
Curves = dict[str, list[Curve]]  # by rule, the smallest size first


def read_curves(
    frame: "pd.DataFrame", over: str | None, where: Mapping[str, object], setting: str | None
) -> tuple[str, str, Curves, list[str]]:
    """Return axis (width or depth), learning rate (lr or lr.embedding), curves by rule, and notes.

    The notes are about rows that were left out.
    """
    axis, setting, rows = normal_rows(frame, over, where, setting)
    notes: list[str] = []
    curves: Curves = {}
    for rule, rows_of_rule in rows.groupby("rule", sort=False):
        curves[str(rule)] = []
        for size, rows_of_size in rows_of_rule.groupby(axis, sort=True):
            name = f"{rule}, {axis} {size}"
            curves[str(rule)].append(_curve(int(cast(int, size)), rows_of_size, name, notes))
    return axis, setting, curves, notes


def normal_rows(
    frame: "pd.DataFrame", over: str | None, where: Mapping[str, object], setting: str | None
) -> tuple[str, str, Rows]:
    """Return axis, learning rate, and the rows of finished trainings.

    In the rows, `lr` is the learning rate that is studied, and the loss is inf where training
    diverged.
    """
    rows: Rows = _with_rule(selected(_checked(frame), where))
    axis = _axis(rows, over)
    setting = _rate_column(rows, setting)
    rows = rows.assign(**{axis: _sizes(rows[axis], axis)})
    _check_constant(rows, axis, setting)
    rows = rows.assign(lr=_rates(rows[setting], setting), loss=_losses(rows), seed=_seeds(rows))
    return axis, setting, rows


def _checked(frame: object) -> "pd.DataFrame":
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            "frame: expected a pandas DataFrame with one row per training, got"
            f" {type(frame).__name__}",
            "wrong-type",
            argument="frame",
        )
    missing = [name for name in ("lr", "loss") if name not in frame]
    if rate_columns(frame):
        missing = [name for name in missing if name != "lr"]
    if missing:
        remedy = "rename your column"
        if missing[0] == "lr":
            remedy = f"{remedy}, or sweep the learning rate: space={{'lr': [...]}}"
        raise InputError(
            f"frame: expected a column {missing[0]!r}, got {', '.join(map(str, frame.columns))};"
            f" {remedy}",
            "frame-needs-column",
            argument="frame",
        )
    if not len(frame):
        raise InputError(
            "frame: expected one row per training, got no rows; run the sweep first",
            "frame-without-rows",
            argument="frame",
        )
    return frame.assign(loss=_numbers(frame["loss"], "loss"))


def rate_columns(frame: Rows) -> list[str]:
    """Return the columns with learning rates: lr, lr.embedding, ..."""
    return [str(name) for name in frame if tuned_name(str(name)) == "lr"]


def _rate_column(rows: Rows, setting: str | None) -> str:
    """Return the learning rate whose optimum is studied: by default the one that varies."""
    columns = rate_columns(rows)
    if setting is not None:
        if setting not in columns:
            raise InputError(
                f"setting: expected a learning rate of the trainings ({', '.join(columns)}), got"
                f" {setting!r}",
                "unknown-name",
                argument="setting",
            )
        return setting
    varying = [name for name in columns if rows[name].nunique(dropna=False) > 1]
    if len(varying) > 1:
        best = rows.loc[rows["loss"].astype(float).idxmin()]
        others = {name: best[name] for name in varying[1:]}
        raise InputError(
            f"frame: several learning rates vary: {', '.join(varying)}. Choose the one to study,"
            f" and one value of the others, for example setting={varying[0]!r}, where={others!r},"
            " which have the lowest loss",
            "choose-with-where",
            argument="setting",
        )
    return (varying or columns)[0]


def _rates(column: Column, name: str) -> Column:
    """Return a column of learning rates as positive floats."""
    numbers = _numbers(column, name)
    rates = numbers.to_numpy(float)
    positive = np.isfinite(rates) & (rates > 0)
    if not positive.all():
        raise InputError(
            f"frame: expected positive learning rates, got {rates[~positive][0]}; drop those rows",
            argument="frame",
        )
    return numbers


def _numbers(column: Column, name: str) -> Column:
    """Return a column as floats, also if a file has them as text; nan for a missing value."""
    import pandas as pd

    read: Any = pd.to_numeric(column, errors="coerce")
    numbers = read.astype(float)
    wrong = numbers.isna() & column.notna()
    if wrong.any():
        raise InputError(
            f"frame: expected numbers in the column {name!r}, got {column[wrong].iloc[0]!r}",
            argument="frame",
        )
    return numbers


def _sizes(column: Column, axis: str) -> Column:
    """Return a column as whole numbers, also if they are stored as floats or text."""
    sizes = _numbers(column, axis)
    whole = np.isfinite(sizes) & (sizes == sizes.round()) & (sizes >= 1)
    if not whole.all():
        raise InputError(
            f"frame: expected whole numbers, 1 or more, in the column {axis!r}, got"
            f" {column[~whole].iloc[0]}",
            argument="frame",
        )
    return sizes.astype(int)


def _with_rule(frame: Rows) -> "pd.DataFrame":
    """Return the frame with a rule in every row; without such a column, the rule is mup."""
    if "rule" not in frame or frame["rule"].isna().all():
        return frame.assign(rule="mup")
    _no_gaps(frame, "rule")
    return frame


def _no_gaps(frame: Rows, name: str) -> None:
    gaps = int(frame[name].isna().sum())
    if gaps > 0:
        raise InputError(
            f"frame: expected a {name} in every row, but it is missing in {gaps}; fill it in, or"
            " drop those rows",
            "frame-has-gaps",
            argument="frame",
        )


def selected(frame: Rows, where: Mapping[str, object]) -> "pd.DataFrame":
    """Return the finished trainings with these values; None selects missing values."""
    for name, value in where.items():
        if name not in frame:
            raise InputError(
                f"where: expected names of columns ({', '.join(map(str, frame.columns))}), got"
                f" {name!r}",
                "unknown-name",
                argument="where",
            )
        if value is None:
            is_chosen = frame[name].isna()
        else:
            is_chosen = frame[name] == value
        if not is_chosen.any():
            raise InputError(
                f"where: expected a value in the column {name!r} ({_values(frame[name])}), got"
                f" {value!r}",
                "unknown-name",
                argument="where",
            )
        frame = frame[is_chosen]
    if "status" in frame:
        frame = frame[~frame["status"].isin(LEFT_OUT)]
    if not len(frame):
        raise InputError(
            "frame: expected finished trainings, got only failed or stopped ones; run the sweep"
            " to its end first",
            "frame-without-rows",
            argument="frame",
        )
    return frame


def _axis(frame: Rows, over: str | None) -> str:
    if over is not None:
        over = one_of(over, SIZES, "axis")
    present = [name for name in SIZES if name in frame and frame[name].notna().all()]
    varying = [name for name in present if frame[name].nunique() > 1]
    if over is None and len(varying) > 1:
        raise InputError(
            "frame: both width and depth vary; pass over='width' and where={'depth': ...}, or the"
            " reverse",
            "choose-with-where",
            argument="over",
        )
    axis = over or (varying or present or [None])[0]
    if axis not in present:
        candidates = SIZES
        if axis:
            candidates = (axis,)
        for name in candidates:
            if name in frame and frame[name].notna().any():
                _no_gaps(frame, name)
        raise InputError(
            f"frame: expected a column {axis or 'width or depth'} with the size of every training,"
            " got none",
            "frame-needs-column",
            argument="frame",
        )
    return axis


def _check_constant(frame: Rows, axis: str, setting: str) -> None:
    """Raise an InputError if a setting varies that must be the same in all trainings."""
    results = {"steps"}
    if "updates" in frame:  # then `steps` is a setting
        results = set()
    settings = [name for name in frame if name in KNOWN or tuned_name(str(name))]
    for name in in_order(settings):
        if name in (*FREE, axis, setting, *results):
            continue
        if frame[name].nunique(dropna=False) > 1:
            best = frame[name].tolist()[int(np.argmin(_losses(frame)))]
            raise InputError(
                f"frame: expected one {name} for all trainings, got {_values(frame[name])}; choose"
                f" one, for example where={{{name!r}: {best!r}}}, which has the lowest loss, or"
                " call transfers() of a sweep, which studies every combination",
                "choose-with-where",
                argument="where",
            )


def _losses(frame: Rows) -> np.ndarray:
    """Return the losses, inf where training diverged."""
    losses = frame["loss"].to_numpy(float)
    if "diverged" in frame:
        diverged = _is_true(frame["diverged"])
    else:
        diverged = np.zeros(len(losses), bool)
    return np.where(np.isfinite(losses) & ~diverged, losses, np.inf)


def _is_true(column: Column) -> np.ndarray:
    """Return a column as booleans; missing values and words such as "no" are False."""
    return np.array([str(value).strip().lower() not in NO for value in column])


def _seeds(frame: Rows) -> list[tuple[object, ...]]:
    names = [name for name in ("seed", "data_seed") if name in frame and frame[name].notna().any()]
    for name in names:
        _no_gaps(frame, name)
    if names:
        columns = [frame[name] for name in names]
        return list(zip(*columns, strict=True))
    return [()] * len(frame)


def _curve(size: int, rows: Rows, name: str, notes: list[str]) -> Curve:
    _check_unique(rows, name)
    table = rows.pivot(index="seed", columns="lr", values="loss").sort_index(axis=1)
    full = _complete(table)
    if full.shape != table.shape:
        text = (
            f"{name}: some trainings are missing; {full.shape[0]} of {table.shape[0]} seeds and"
            f" {full.shape[1]} of {table.shape[1]} learning rates are used"
        )
        notes.append(with_code(text, "incomplete-grid"))
    return Curve(size, np.log2(full.columns.to_numpy(float)), full.to_numpy(float))


def _check_unique(rows: Rows, name: str) -> None:
    """Raise an InputError if two trainings have the same learning rate and seed."""
    repeated = rows.duplicated(["lr", "seed"], keep=False)
    if not repeated.any():
        return
    first = rows[repeated].iloc[0]
    same = rows[(rows["lr"] == first["lr"]) & (rows["seed"] == first["seed"])]
    differing = [column for column in same if column not in RESULTS and same[column].nunique() > 1]
    if differing:
        remedy = f"they differ in {', '.join(differing)}: choose one with where={{...}}"
    else:
        remedy = "drop all but one"
    raise InputError(
        f"frame: {len(same)} trainings have the same settings ({name}, lr {first['lr']:g}, same"
        f" seed); {remedy}",
        "choose-with-where",
        argument="frame",
    )


def _complete(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table without missing values.

    Drop the seeds that miss a learning rate if two or more seeds remain; otherwise drop the
    learning rates that miss a seed.
    """
    seeds = table.dropna()
    if len(seeds) >= min(2, len(table)):
        return seeds
    return table.dropna(axis=1)


def _values(column: Column, most: int = 6) -> str:
    values: list[str] = []
    for value in column.unique():
        values.append(f"{value:g}" if isinstance(value, float) else str(value))
    if len(values) > most:
        values = [*values[:most], "..."]
    return ", ".join(values)
