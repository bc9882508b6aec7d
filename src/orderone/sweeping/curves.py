"""A tidy frame (one row a training: width or depth, rule, lr, seed, loss) as curves: losses by seed
and learning rate."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from orderone.core.errors import one_of
from orderone.sweeping.optimum import Curve
from orderone.sweeping.trial import KNOWN, SIZES

if TYPE_CHECKING:
    import pandas as pd

LEFT_OUT = ("failed", "stopped")  # no loss at the end, or one from before the end
FREE = ("rule", "lr", "seed", "data_seed")  # may vary in a study; everything else is held
RESULTS = (
    "loss",
    "evaluation",
    "diverged",
    "steps",
    "seconds",
    "status",
    "error",
    "key",
)  # settings are the others
NO = ("false", "no", "0", "0.0", "", "nan", "none", "<na>")
# A DataFrame and a Series, which `_checked` makes sure of. The types of pandas do not tell them
# apart: by them, a column of a frame may be a frame.
Rows: TypeAlias = Any
Column: TypeAlias = Any
Curves = dict[str, list[Curve]]  # by rule, the smallest size first


def read_curves(
    frame: "pd.DataFrame", over: str | None, where: Mapping[str, object]
) -> tuple[str, Curves, list[str]]:
    """The axis, the curves, and what had to be left out."""
    rows: Rows = _ruled(_selected(_checked(frame), where))
    axis = _axis(rows, over)
    rows = rows.assign(**{axis: _sizes(rows[axis], axis)})
    _held(rows, axis)
    rows = rows.assign(loss=_losses(rows), seed=_seeds(rows))
    notes: list[str] = []
    curves: Curves = {}
    for rule, rows_of_rule in rows.groupby("rule", sort=False):
        curves[str(rule)] = []
        for size, rows_of_size in rows_of_rule.groupby(axis, sort=True):
            name = f"{rule}, {axis} {size}"
            curves[str(rule)].append(_curve(int(cast(int, size)), rows_of_size, name, notes))
    return axis, curves, notes


def _checked(frame: object) -> "pd.DataFrame":
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise ValueError(
            f"frame: expected a DataFrame with one row a training, got {type(frame).__name__}"
        )
    for name in ("lr", "loss"):
        if name not in frame:
            raise ValueError(
                f"frame: expected a column {name!r}, got {', '.join(map(str, frame.columns))};"
                " rename yours"
            )
    if not len(frame):
        raise ValueError("frame: expected one row a training, got none; run the sweep first")
    frame = frame.assign(lr=_numbers(frame["lr"], "lr"), loss=_numbers(frame["loss"], "loss"))
    rates = frame["lr"].to_numpy(float)
    if not (np.isfinite(rates) & (rates > 0)).all():
        wrong = rates[~(np.isfinite(rates) & (rates > 0))][0]
        raise ValueError(f"frame: expected positive learning rates, got {wrong}; drop those rows")
    return frame


def _numbers(column: Column, name: str) -> Column:
    """Return a column as floats, also where a file has words for them; nan for a gap."""
    import pandas as pd

    read: Any = pd.to_numeric(column, errors="coerce")
    numbers = read.astype(float)
    wrong = numbers.isna() & column.notna()
    if wrong.any():
        raise ValueError(
            f"frame: expected numbers in the column {name!r}, got {column[wrong].iloc[0]!r}"
        )
    return numbers


def _sizes(column: Column, axis: str) -> Column:
    """Whole numbers, in whatever form: a file with a gap makes floats of them."""
    sizes = _numbers(column, axis)
    whole = np.isfinite(sizes) & (sizes == sizes.round()) & (sizes >= 1)
    if not whole.all():
        raise ValueError(
            f"frame: expected whole numbers, 1 or more, as {axis}, got {column[~whole].iloc[0]}"
        )
    return sizes.astype(int)


def _ruled(frame: Rows) -> "pd.DataFrame":
    """Without any rule, muP is meant."""
    if "rule" not in frame or frame["rule"].isna().all():
        return frame.assign(rule="mup")
    _no_gaps(frame, "rule")
    return frame


def _no_gaps(frame: Rows, name: str) -> None:
    gaps = int(frame[name].isna().sum())
    if gaps > 0:
        raise ValueError(
            f"frame: expected a {name} in every row, and {gaps} have none; fill them in, or drop"
            " those rows"
        )


def _selected(frame: Rows, where: Mapping[str, object]) -> "pd.DataFrame":
    for name, value in where.items():
        if name not in frame:
            raise ValueError(
                f"where: no column is called {name!r}; there are"
                f" {', '.join(map(str, frame.columns))}"
            )
        kept = frame[name] == value
        if not kept.any():
            raise ValueError(
                f"where: no row has {name} = {value!r}; there are {_values(frame[name])}"
            )
        frame = frame[kept]
    if "status" in frame:
        frame = frame[~frame["status"].isin(LEFT_OUT)]
    if not len(frame):
        raise ValueError(
            "frame: expected trainings that came to their end, got none; run the sweep first"
        )
    return frame


def _axis(frame: Rows, over: str | None) -> str:
    if over is not None:
        over = one_of(over, SIZES, "axis")
    present = [name for name in SIZES if name in frame and frame[name].notna().all()]
    varying = [name for name in present if frame[name].nunique() > 1]
    if over is None and len(varying) > 1:
        raise ValueError(
            "frame: both width and depth vary; say over='width' and where={'depth': ...}, or the"
            " reverse"
        )
    axis = over or (varying or present or [None])[0]
    if axis not in present:
        candidates = SIZES
        if axis:
            candidates = (axis,)
        for name in candidates:
            if name in frame and frame[name].notna().any():
                _no_gaps(frame, name)
        raise ValueError(
            f"frame: expected a column {axis or 'width or depth'} with the size of every training,"
            " got none"
        )
    return axis


def _held(frame: Rows, axis: str) -> None:
    """One optimum has one set of other settings."""
    for name in KNOWN:
        if name not in (*FREE, axis) and name in frame and frame[name].nunique(dropna=False) > 1:
            raise ValueError(
                f"frame: expected one {name} for all trainings, got {_values(frame[name])}; choose"
                f" one with where={{{name!r}:"
                f" {frame.loc[frame['loss'].astype(float).idxmin(), name]!r}}} (the best loss"
                " has it)"
            )


def _losses(frame: Rows) -> np.ndarray:
    """inf where training diverged: above any number."""
    losses = frame["loss"].to_numpy(float)
    if "diverged" in frame:
        diverged = _true(frame["diverged"])
    else:
        diverged = np.zeros(len(losses), bool)
    return np.where(np.isfinite(losses) & ~diverged, losses, np.inf)


def _true(column: Column) -> np.ndarray:
    """A gap is no, and so are the words for no."""
    return np.array([str(value).strip().lower() not in NO for value in column])


def _seeds(frame: Rows) -> list[tuple[object, ...]]:
    names = [name for name in ("seed", "data_seed") if name in frame and frame[name].notna().any()]
    for name in names:
        _no_gaps(frame, name)
    if names:
        columns = [frame[name] for name in names]
        return list(zip(*columns, strict=True))
    return [()] * len(frame)


def _curve(size: int, rows: Rows, called: str, notes: list[str]) -> Curve:
    double = rows.duplicated(["lr", "seed"], keep=False)
    if double.any():
        first = rows[double].iloc[0]
        same = rows[(rows["lr"] == first["lr"]) & (rows["seed"] == first["seed"])]
        names = [name for name in same if name not in RESULTS and same[name].nunique() > 1]
        if names:
            differ = f"; they differ in {', '.join(names)}: choose with where={{...}}"
        else:
            differ = "; drop one"
        raise ValueError(
            f"frame: {len(same)} trainings of {called}, lr {first['lr']:g} and one seed{differ}"
        )
    table = rows.pivot(index="seed", columns="lr", values="loss").sort_index(axis=1)
    full = _complete(table)
    if full.shape != table.shape:
        notes.append(
            f"{called}: trainings are missing; {full.shape[0]} of {table.shape[0]} seeds and"
            f" {full.shape[1]} of {table.shape[1]} learning rates are used"
        )
    return Curve(size, np.log2(full.columns.to_numpy(float)), full.to_numpy(float))


def _complete(table: "pd.DataFrame") -> "pd.DataFrame":
    """Every seed with every rate: seeds that miss one are left out while two others stay, otherwise
    rates are."""
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
