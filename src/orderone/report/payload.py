"""A check as JSON for the page: compact, without NaN, and safe inside a <script> element."""

import json
import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from orderone.core.inputs import ArrayLike
from orderone.report.cube import Cube, cube
from orderone.report.inputs import CheckInput
from orderone.report.verdicts import COLOURS, INK_ON, ORDER, UNJUDGED, first_quantity, ranked

DIGITS = 4  # more than a screen can show
STEPS = 2000  # of a logarithm, per decade: an error of at most 0.06 %
JsonNumber: TypeAlias = float | int | None
JsonSize: TypeAlias = int | str | None


def payload(check: CheckInput, steps: int = STEPS) -> str:
    """Return the records, verdicts and losses of a check as JSON.

    Recorded sizes are rounded to `steps` values per decade.
    """
    records = cube(check)
    verdicts = [{"word": word, "colour": COLOURS[word], "ink": INK_ON[word]} for word in ORDER]
    return script_safe(
        {
            "axis": check.axis,
            "modules": records.modules,
            "quantities": records.quantities,
            "steps": records.steps,
            "sizes": records.sizes,
            "seeds": [str(seed) for seed in records.seeds],
            "rms": _rms(records, steps),
            "per_decade": steps,
            "rows": _rows(check, records),
            "losses": _losses(check),
            "first": records.quantities.index(first_quantity(check)),
            "verdicts": verdicts,
            "unjudged": UNJUDGED,
        }
    )


def _rms(records: Cube, steps: int) -> list[list[list[JsonSize] | None]]:
    """Return the (step, size, seed) values of every module and quantity in one list.

    A quantity that a module does not have is null. `sizes` explains the form of the lists.
    """
    modules = []
    for values, known in zip(records.rms, records.known, strict=True):
        quantities = []
        for rms, has_records in zip(values, known, strict=True):
            quantities.append(sizes(rms.ravel(), steps) if has_records else None)
        modules.append(quantities)
    return modules


def _rows(check: CheckInput, records: Cube) -> list[list[object]]:
    """List exponents, worst first, with indices of modules and quantities instead of names."""
    table = ranked(check)
    columns: list[Iterable[object]] = [
        map(records.modules.index, table["module"]),
        map(records.quantities.index, table["quantity"]),
    ]
    for name in ("step", "exponent", "low", "high", "predicted"):
        columns.append(numbers(table[name]))
    for name in ("verdict", "cause", "role"):
        columns.append(table[name].fillna("").astype(str))
    return [list(row) for row in zip(*columns, strict=True)]


def _losses(check: CheckInput) -> list[list[object]]:
    """List [size, seed, steps, losses] of each run."""
    losses = check.losses.sort_values("step")
    rows: list[list[object]] = []
    for _, run in losses.groupby([check.axis, "seed"], sort=True):
        size = int(run[check.axis].iloc[0])
        seed = str(run["seed"].iloc[0])
        rows.append([size, seed, numbers(run["step"]), numbers(run["loss"])])
    return rows


def numbers(values: ArrayLike) -> list[JsonNumber]:
    """Round numbers. NaN and infinity, which JSON does not have, become null."""
    return [_number(float(value)) for value in np.asarray(values, float)]


def sizes(values: ArrayLike, steps: int = STEPS) -> list[JsonSize]:
    """Return sizes as differences of logarithms, in units of 1/`steps` of a decade.

    The values of neighbouring seeds and widths are alike, so that their differences are short and
    compress well. Zero becomes "0". NaN and infinity become null. Both are skipped by differences.
    """
    encoded: list[JsonSize] = []
    last = 0
    for value in np.asarray(values, float):
        if not math.isfinite(value):
            encoded.append(None)
        elif value <= 0:
            encoded.append("0")
        else:
            now = round(math.log10(value) * steps)
            encoded.append(now - last)
            last = now
    return encoded


def _number(value: float) -> JsonNumber:
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e6:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def script_safe(value: object) -> str:
    """Return JSON that cannot close the script element, open a comment in it, or end its line."""
    # ASCII: U+2028 and its like are escaped
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
