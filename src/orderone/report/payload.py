"""A check as JSON for the page: plain, compact, free of NaN, and safe inside a <script> element."""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from orderone.report.cube import Cube, cube
from orderone.report.verdicts import COLOURS, INK_ON, ORDER, UNJUDGED, first_quantity, ranked

DIGITS = 4  # more than a screen can show; a model of 300 modules stays below a few MB


def payload(r: Any) -> str:
    records = cube(r)
    return script_safe(
        {
            "axis": r.axis,
            "modules": records.modules,
            "quantities": records.quantities,
            "steps": records.steps,
            "sizes": records.sizes,
            "seeds": [str(seed) for seed in records.seeds],
            "rms": [
                [_values(records, m, q) for q in range(len(records.quantities))]
                for m in range(len(records.rms))
            ],
            "rows": _rows(r, records),
            "losses": _losses(r),
            "first": records.quantities.index(first_quantity(r)),
            "verdicts": [
                {"word": word, "colour": COLOURS[word], "ink": INK_ON[word]} for word in ORDER
            ],
            "unjudged": UNJUDGED,
        }
    )


def _values(records: Cube, module: int, quantity: int) -> list | None:
    """(step, size, seed) in one list, or null: most modules do not have every quantity."""
    if not records.known[module, quantity]:
        return None
    return numbers(records.rms[module, quantity].ravel())


def _rows(r: Any, records: Cube) -> list[list]:
    """Exponents, worst first; modules and quantities as indices, since their names repeat."""
    table = ranked(r)
    return [
        list(row)
        for row in zip(
            map(records.modules.index, table["module"]),
            map(records.quantities.index, table["quantity"]),
            numbers(table["step"]),
            *(numbers(table[name]) for name in ("exponent", "low", "high", "predicted")),
            *(table[name].fillna("").astype(str) for name in ("verdict", "cause", "role")),
            strict=True,
        )
    ]


def _losses(r: Any) -> list[list]:
    """[size, seed, steps, losses], one for each run."""
    runs = r.losses.sort_values("step").groupby([r.axis, "seed"], sort=True)
    return [
        [int(s), str(seed), numbers(run["step"]), numbers(run["loss"])] for (s, seed), run in runs
    ]


def numbers(values: Iterable[Any]) -> list[float | int | None]:
    """JSON has no NaN and no infinity: they become null."""
    return [_number(float(value)) for value in np.asarray(values, float)]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e6:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def script_safe(value: object) -> str:
    """No name can close the script element, open a comment in it, or end a line of it."""
    text = json.dumps(
        value, allow_nan=False, separators=(",", ":")
    )  # ASCII: U+2028 and its like are escaped
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
