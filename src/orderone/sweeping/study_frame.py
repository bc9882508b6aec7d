"""Common settings of the trainings of a table: the base, the other size, and those of a plan."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.sweeping.curves import Curves
from orderone.sweeping.inputs import Frame
from orderone.sweeping.trial import Scalar, setting_of, tuned_name

if TYPE_CHECKING:
    import pandas as pd


def base_size(base: Count | None, curves: Curves) -> int:
    """Return the size that `lr` is meant for: by default the smallest."""
    if base is not None:
        return count(base, "base")
    sizes: list[int] = []
    for curves_of_rule in curves.values():
        sizes += [curve.size for curve in curves_of_rule]
    return min(sizes)


def held_size(frame: Frame, axis: str, where: Mapping[str, Any]) -> dict[str, int]:
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


def only_value(frame: Frame, name: str) -> Any:
    """Return the value of a column if all rows have the same, otherwise None."""
    if name not in frame:
        return None
    column = cast("pd.Series", frame[name])
    if column.nunique() != 1:
        return None
    return column.iloc[0]


def shared_options(rows: Frame) -> dict[str, object]:
    """Return the settings of `plan` that the trainings share, apart from learning rates."""
    options: dict[str, object] = {}
    for name in ("weight_decay", "eps", "init_scale", "init"):
        columns = [str(column) for column in rows if tuned_name(str(column)) == name]
        value = setting_of(shared_values(rows, columns), name)
        if value is not None:
            options[name] = value
    return options


def shared_values(rows: Frame, names: Sequence[str]) -> dict[str, Scalar]:
    """Return the values of these columns that all rows share."""
    constants: dict[str, Scalar] = {}
    for name in names:
        value = only_value(rows, name)
        if value is not None:
            if isinstance(value, str):
                constants[name] = value
            else:
                constants[name] = float(value)
    return constants
