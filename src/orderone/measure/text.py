"""A coordinate check as text: the verdict, why, and what is not as it should be, the worst
first."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orderone.measure.verdict import FAIL, PASS, SHRINKS, UNCLEAR
from orderone.planning.counterparts import stack_of

if TYPE_CHECKING:
    from orderone.measure.check import Check, Judgement

ORDER = (FAIL, UNCLEAR, SHRINKS, PASS)
LINES = 16
COLUMNS = 100
HEADER = ("verdict", "module", "quantity", "measured", "predicted")
TELLING = ("change", "score change", "output")  # what a check that passes is about


def render(check: "Check") -> str:
    told = ", ".join(f"{check.count(v)} {v}" for v in ORDER if check.count(v))
    lines = [f"{check.verdict}: {headline(check)}", f"  {told or 'nothing was judged'}"]
    lines += [line for cause in check.causes for line in _wrapped("because: ", cause)]
    lines += [
        line
        for note in check.notes
        if note not in check.causes
        for line in _wrapped("note: ", note)
    ]
    if check.count(SHRINKS):
        lines += _wrapped(
            "note: ",
            "what SHRINKS is learnt less at width than theory allows; .exponents has its alignment",
        )
    return "\n".join([*lines, *_table(check)])


def headline(check: "Check") -> str:
    p = check.provenance
    seeds = len(check.provenance["seeds"])
    sizes = f"{check.axis}s {', '.join(map(str, p['sizes']))}"
    rate = "" if p["lr"] is None else f" with lr {p['lr']}"
    return (
        f"{p['rule']} for {p['optimizer']}{rate}, {sizes}, {p['steps']} steps, {seeds}"
        f" seed{'s' * (seeds > 1)}"
    )


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, COLUMNS, initial_indent=f"  {head}", subsequent_indent=" " * 4, break_on_hyphens=False
    )


def _table(check: "Check") -> list[str]:
    groups = sorted(_groups(check.judgements), key=lambda group: ORDER.index(group[0].verdict))
    shown = [g for g in groups if g[0].verdict != PASS] or [g for g in groups if _is_telling(g[0])]
    if not shown:
        return []
    rows = [HEADER, *(_row(group, check.axis) for group in shown[:LINES])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    left_out = len(groups) - len(shown[:LINES])
    worst = next((g[0].verdict for g in shown[LINES:]), PASS)
    return ["", *lines, *([f"... and {left_out} more lines, {worst} at worst"] if left_out else [])]


def _is_telling(j: "Judgement") -> bool:
    return j.quantity in TELLING and j.step > 0


def _groups(judgements: "Sequence[Judgement]") -> "list[list[Judgement]]":
    """One line for layers of a stack, and modules that hand on the same tensor, with the same
    verdict."""
    found: dict[tuple, list[Judgement]] = {}
    for j in judgements:
        found.setdefault((stack_of(j.module), j.quantity, j.step, j.verdict), []).append(j)
    same: dict[tuple, list[Judgement]] = {}
    for (_, quantity, step, verdict), group in found.items():
        numbers = tuple(round(x, 6) for j in group for x in (j.exponent, j.low) if x == x)
        key = (quantity, step, verdict, numbers or tuple(j.module for j in group))
        if key not in same:
            same[key] = group
    return list(same.values())


def _row(group: "list[Judgement]", axis: str) -> tuple[str, ...]:
    first = group[0]
    n = "n" if axis == "width" else "L"
    name = stack_of(first.module) if len(group) > 1 else first.module
    if first.step == 0:
        when = first.quantity
    else:
        when = f"{first.quantity} after {first.step}"
    if first.exponent != first.exponent:
        return first.verdict, name or "(the model)", when, first.cause.partition(":")[0], ""
    return (
        first.verdict,
        name or "(the model)",
        when,
        _measured(group, n),
        _range([j.predicted for j in group], n),
    )


def _measured(group: "list[Judgement]", n: str) -> str:
    """With the interval where it is what decides."""
    text = _range([j.exponent for j in group], n)
    if group[0].verdict == PASS:
        return text
    return f"{text} [{min(j.low for j in group):+.2f}, {max(j.high for j in group):+.2f}]"


def _range(exponents: list[float], n: str) -> str:
    known = sorted({round(x, 2) + 0.0 for x in exponents if x == x})
    if not known:
        return "-"
    if len(known) == 1:
        return f"{n}^{known[0]:+.2f}"
    return f"{n}^{known[0]:+.2f} to {known[-1]:+.2f}"
