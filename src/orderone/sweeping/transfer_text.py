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


def render(study: "Transfer") -> str:
    """Return the whole study as text."""
    verdicts = [f"{drift.rule} {said(drift.verdict)}" for drift in study.drift.values()]
    lines = ["; ".join(verdicts), f"  {headline(study)}"]
    for drift in study.drift.values():
        remedy = f"; {drift.remedy}" if drift.remedy else ""
        lines += _wrapped(f"{drift.rule}: {drift.why}{remedy}")
    for note in study.notes:
        lines += _wrapped(f"note: {note}")
    lines += ["", *_table(optima_table(study)), "", *_table(drift_table(study))]
    return "\n".join(lines)


def said(verdict: str) -> str:
    """Return the verdict as the end of a sentence."""
    if verdict.startswith("not"):
        return f"has {verdict}"
    return verdict


def headline(study: "Transfer") -> str:
    sizes: set[int] = set()
    rates: set[int] = set()
    seeds: set[int] = set()
    for curves in study.curves.values():
        for curve in curves:
            sizes.add(curve.size)
            rates.add(curve.losses.shape[1])
            seeds.add(curve.losses.shape[0])
    size_text = ", ".join(str(size) for size in sorted(sizes))
    counts = f"{_counted(rates, 'learning rate')}, {_counted(seeds, 'seed')}"
    return f"{study.optimizer}, {study.axis}s {size_text}, {counts}"


def _counted(numbers: set[int], noun: str) -> str:
    """Return "1 seed", "3 seeds", or "2 to 3 seeds"."""
    if len(numbers) > 1:
        return f"{min(numbers)} to {max(numbers)} {noun}s"
    number = min(numbers)
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, initial_indent="  ", subsequent_indent=" " * 4, break_on_hyphens=False
    )


def optima_table(study: "Transfer") -> list[tuple[str, ...]]:
    """Return the rows of the table of optima, the head first."""
    rows = [("rule", study.axis, "best lr", "loss", f"with that of the smallest {study.axis}")]
    for rule in study.rules:
        for k, best in enumerate(study.optima[rule]):
            cost = "" if k == 0 else _cost(study.regret(rule, k))
            rows.append((rule, str(best.size), rate(best), f"{best.loss:.4g}", cost))
    return rows


def _cost(regret: float) -> str:
    if math.isnan(regret):
        return "-"
    if math.isinf(regret):
        return "diverges"
    return f"+{regret:.2g}"


def rate(best: Optimum) -> str:
    """Return `0.0041 [0.0036, 0.0047]`, or why there is none."""
    if best.beyond == INSIDE:
        if math.isinf(best.low):
            return f"{best.lr:.3g}"
        return f"{best.lr:.3g} [{2**best.low:.3g}, {2**best.high:.3g}]"
    reasons = {
        BELOW: f"below {2**best.high:.3g}, the grid's end",
        ABOVE: f"above {2**best.low:.3g}, the grid's end",
        NOWHERE: "all diverged",
        FLAT: "all equal",
        SINGLE: "one rate only",
    }
    return reasons[best.beyond]


def drift_table(study: "Transfer") -> list[tuple[str, ...]]:
    """Return the rows of the table of drifts, the head first."""
    rows = [("rule", f"octaves of lr per doubling of {study.axis}", "predicted", "verdict")]
    for drift in study.drift.values():
        rows.append((drift.rule, slope(drift), predicted(drift), drift.verdict))
    return rows


def slope(drift: Drift) -> str:
    if math.isnan(drift.slope):
        return "-"
    if math.isinf(drift.low):
        return f"{drift.slope:+.2f}"
    return f"{drift.slope:+.2f} [{drift.low:+.2f}, {drift.high:+.2f}]"


def predicted(drift: Drift) -> str:
    full, worst = drift.predicted
    if math.isnan(full):
        return "-"
    if full == worst:
        return f"{full:g}"
    return f"{full:g} to {worst:g}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths: list[int] = []
    for column in zip(*rows, strict=True):
        widths.append(max(len(cell) for cell in column))
    lines: list[str] = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines
