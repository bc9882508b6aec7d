"""A transfer study as text: the verdicts, the optimum of every size, the drift of every rule, and
what is missing."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orderone.sweeping.drift import Drift
from orderone.sweeping.optimum import ABOVE, BELOW, FLAT, INSIDE, NOWHERE, SINGLE, Optimum

if TYPE_CHECKING:
    from orderone.sweeping.transfer import Transfer

COLUMNS = 100


def render(t: "Transfer") -> str:
    lines = ["; ".join(f"{d.rule} {said(d.verdict)}" for d in t.drift.values()), f"  {headline(t)}"]
    for d in t.drift.values():
        lines += _wrapped(f"{d.rule}: {d.why}" + (f"; {d.remedy}" if d.remedy else ""))
    lines += [line for note in t.notes for line in _wrapped(f"note: {note}")]
    return "\n".join([*lines, "", *_table(optima_table(t)), "", *_table(drift_table(t))])


def said(verdict: str) -> str:
    """As the end of a sentence."""
    if verdict.startswith("not"):
        return f"has {verdict}"
    return verdict


def headline(t: "Transfer") -> str:
    curves = [curve for of_rule in t.curves.values() for curve in of_rule]
    sizes = ", ".join(map(str, sorted({curve.size for curve in curves})))
    rates, seeds = (_range({curve.losses.shape[axis] for curve in curves}) for axis in (1, 0))
    counts = (
        f"{number} {name}{'s' * (number != '1')}"
        for number, name in ((rates, "learning rate"), (seeds, "seed"))
    )
    return f"{t.optimizer}, {t.axis}s {sizes}, {', '.join(counts)}"


def _range(numbers: set[int]) -> str:
    if len(numbers) == 1:
        return str(min(numbers))
    return f"{min(numbers)} to {max(numbers)}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, initial_indent="  ", subsequent_indent=" " * 4, break_on_hyphens=False
    )


def optima_table(t: "Transfer") -> list[tuple[str, ...]]:
    """The first row is the head."""
    rows = [("rule", t.axis, "best lr", "loss", f"with that of the smallest {t.axis}")]
    for rule in t.rules:
        for k, o in enumerate(t.optima[rule]):
            regret = t.regret(rule, k)
            if k == 0:
                kept = ""
            elif math.isnan(regret):
                kept = "-"
            elif math.isinf(regret):
                kept = "diverges"
            else:
                kept = f"+{regret:.2g}"
            rows.append((rule, str(o.size), rate(o), f"{o.loss:.4g}", kept))
    return rows


def rate(o: Optimum) -> str:
    """`0.0041 [0.0036, 0.0047]`, or why there is none."""
    if o.beyond == INSIDE:
        return f"{o.lr:.3g}" + ("" if math.isinf(o.low) else f" [{2**o.low:.3g}, {2**o.high:.3g}]")
    return {
        BELOW: f"below {2**o.high:.3g}, the grid's end",
        ABOVE: f"above {2**o.low:.3g}, the grid's end",
        NOWHERE: "all diverged",
        FLAT: "all equal",
        SINGLE: "one rate only",
    }[o.beyond]


def drift_table(t: "Transfer") -> list[tuple[str, ...]]:
    rows = [("rule", f"octaves of lr per doubling of {t.axis}", "predicted", "verdict")]
    return rows + [(d.rule, slope(d), predicted(d), d.verdict) for d in t.drift.values()]


def slope(d: Drift) -> str:
    if math.isnan(d.slope):
        return "-"
    return f"{d.slope:+.2f}" + ("" if math.isinf(d.low) else f" [{d.low:+.2f}, {d.high:+.2f}]")


def predicted(d: Drift) -> str:
    full, worst = d.predicted
    if math.isnan(full):
        return "-"
    if full == worst:
        return f"{full:g}"
    return f"{full:g} to {worst:g}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
