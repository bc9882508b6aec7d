"""Result of a coordinate check: records, exponents, verdicts and likely causes, also as text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

from orderone.core.errors import hint_on_codes, with_code, without_code
from orderone.core.notebook import notebook_html
from orderone.core.text_table import printable, text_table, wrapped
from orderone.measure import records
from orderone.measure.judge.explain import explanation
from orderone.measure.judge.verdict import SYMBOLS, Judgement, Reason, Verdict
from orderone.measure.observations import Observations
from orderone.observe.quantities import Quantity
from orderone.planning.counterparts import common_name, stack_of
from orderone.planning.start_sizes import StartReport

if TYPE_CHECKING:
    import pandas as pd

    from orderone.measure.alignment_ratios import MeasuredAlignment

COLUMNS = [
    "module",
    "quantity",
    "step",
    "exponent",
    "low",
    "high",
    "predicted",
    "verdict",
    "cause",
    "role",
]
ORDER = (Verdict.FAIL, Verdict.UNCLEAR, Verdict.SHRINKS, Verdict.PASS)  # the worst first
NOT_JUDGED = "initial sizes (not judged)"
LINES = 16
CAUSES = 3  # distinct causes of UNCLEAR rows in a text
GROUPS = 3  # groups of modules that are named
# quantities in the table of a check that passes
MAIN_QUANTITIES = (Quantity.CHANGE, Quantity.SCORE_CHANGE, Quantity.OUTPUT)


@dataclass(frozen=True)
class Check:
    """Result of `coord_check`.

    Print it, read `exponents` and `frame`, `save` it, or pass it to `orderone.report`.
    """

    observations: Observations = field(repr=False)
    judgements: Sequence[Judgement] = field(repr=False)
    verdict: Verdict
    causes: tuple[str, ...]  # of FAIL and UNCLEAR, the likeliest first
    notes: tuple[str, ...]
    provenance: Mapping[str, object]
    interrupted: bool = False
    unjudged: tuple[str, ...] = ()  # trained tensors whose learning rate no line judges
    # initial sizes of the smallest model beside order one: a finding of its own, no verdict
    start: StartReport | None = None

    @property
    def passed(self) -> bool:
        return self.verdict == Verdict.PASS

    @property
    def axis(self) -> str:
        return self.observations.axis

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """Records: one row for each run, step, module (or tensor) and quantity.

        Columns: rms, mean, largest absolute value (max), fraction of finite entries (finite).
        """
        return self.observations.frame(self.provenance)

    @cached_property
    def losses(self) -> "pd.DataFrame":
        return self.observations.losses(self.provenance)

    @cached_property
    def alignment(self) -> "MeasuredAlignment | None":
        """Alignment exponents alpha across the last step of the first seed.

        `orderone.alignment` measures alpha, omega and u at all steps and with all seeds.
        """
        return self.observations.alignment(self.provenance)

    @cached_property
    def exponents(self) -> "pd.DataFrame":
        """One row for each judged module (or tensor) and quantity.

        Columns: fitted exponent, interval (low, high), prediction, verdict, cause, role.
        """
        rows = []
        for line in self.judgements:
            rows.append(
                (
                    line.module,
                    line.quantity.value,
                    line.step,
                    line.exponent,
                    line.low,
                    line.high,
                    line.predicted,
                    line.verdict.value,
                    line.cause,
                    str(line.role),
                )
            )
        return records.table(rows, COLUMNS, self.provenance)

    def count(self, verdict: str) -> int:
        """Return the number of rows with this verdict."""
        return sum(line.verdict == verdict for line in self.judgements)

    def explain(self, name: str) -> None:
        """Print why the lines about a module or tensor, and what is inside it, have their verdicts.

        Each line: prediction, measurement, interval, thresholds, and the file of theory behind it.
        """
        rule = str(self.provenance["rule"])
        print(printable(explanation(self.judgements, name, rule, self.axis)))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the records as .jsonl or .parquet; `orderone.measure.read` reads them back."""
        records.write(self.frame, path)

    def __repr__(self) -> str:
        return f"<Check {self.verdict}: {self._headline}; {self._counts}>"

    def _repr_html_(self) -> str:
        """Return the verdict, the causes and the main rows for notebooks."""
        rows, left_out = _rows(self.judgements, self.axis)
        notes = [f"because: {cause}" for cause in self.causes]
        notes += [note for note in self.notes if note not in self.causes]
        notes += [f"{NOT_JUDGED}: {finding}" for finding in self._start_findings]
        notes += filter(None, [left_out])
        for cause, names in _explained(self.judgements).items():
            notes.append(f"{', '.join(names)}: {cause}")
        notes += _why_unclear(self.judgements, self.axis, self.causes)
        tables = [rows] if rows else []
        return notebook_html(f"{self.verdict}: {self._headline}; {self._counts}", tables, notes)

    def __str__(self) -> str:
        """Return the verdict, its causes, and the rows that do not pass, the worst first."""
        lines = [*wrapped(f"{self.verdict}: {self._headline}", indent=0), *wrapped(self._counts)]
        remarks = [f"because: {cause}" for cause in self.causes]
        remarks += [f"note: {note}" for note in self.notes if note not in self.causes]
        remarks += [f"{NOT_JUDGED}: {finding}" for finding in self._start_findings]
        if self.count(Verdict.SHRINKS):
            note = (
                "SHRINKS (no fault): an output changes less in large models than the rule allows;"
                " the column cause of check.exponents has the measured alignment"
            )
            remarks.append(f"note: {with_code(note, 'updates-shrink')}")
        for remark in remarks:
            lines += wrapped(remark)
        lines += _table(self.judgements, self.axis)
        for reason in _why_unclear(self.judgements, self.axis, self.causes):
            lines += wrapped(reason, indent=0)
        return printable("\n".join([*lines, *hint_on_codes(remarks)]))

    @property
    def _start_findings(self) -> tuple[str, ...]:
        if self.start is None:
            return ()
        return self.start.findings

    @property
    def _counts(self) -> str:
        counts = []
        for verdict in ORDER:
            if self.count(verdict):
                counts.append(f"{self.count(verdict)} {verdict}")
        if not counts:
            return "no exponent was judged"
        return f"{len(self.judgements)} exponents: {', '.join(counts)}"

    @property
    def _headline(self) -> str:
        rule = self.provenance["rule"]
        optimizer = self.provenance["optimizer"]
        lr = self.provenance["lr"]
        rate = ""
        if lr is not None:
            rate = f" with lr {lr}"
        sizes = ", ".join(map(str, _items(self.provenance["sizes"])))
        seeds = len(_items(self.provenance["seeds"]))
        plural = "s" if seeds > 1 else ""
        return (
            f"{rule} for {optimizer}{rate}, {self.axis}s {sizes}, {self.provenance['steps']} steps,"
            f" {seeds} seed{plural}"
        )


# --- text -----------------------------------------------------------------------------------------


def _items(value: object) -> Sequence[object]:
    assert isinstance(value, Sequence)
    return value


def _table(judgements: Sequence[Judgement], axis: str) -> list[str]:
    """Return the lines of the table of a check."""
    rows, left_out = _rows(judgements, axis)
    if not rows:
        return []
    lines = ["", *text_table(rows, named=True), *filter(None, [left_out])]
    lines += wrapped(_legend(rows, SYMBOLS[axis], axis), indent=0)
    for cause, names in _explained(judgements).items():
        lines += wrapped(f"{', '.join(names)}: {cause}", indent=0)
    return lines


def _explained(judgements: Sequence[Judgement]) -> dict[str, list[str]]:
    """Return why sizes that are not of order one pass, each with its modules."""
    modules: dict[str, list[str]] = {}
    for line in judgements:
        if line.verdict == Verdict.PASS and line.cause:
            names = modules.setdefault(line.cause, [])
            if line.module not in names:
                names.append(line.module)
    return modules


def _why_unclear(
    judgements: Sequence[Judgement], axis: str, causes: Sequence[str] = ()
) -> list[str]:
    """Return why rows are UNCLEAR, although their exponents may look like those of a PASS.

    Reasons among the causes of the whole check are left out.
    """
    known = [without_code(cause) for cause in causes]
    wide = 0
    modules: dict[tuple[str, str], list[str]] = {}
    for line in judgements:
        if line.verdict != Verdict.UNCLEAR or math.isnan(line.exponent) or line.cause in known:
            continue
        if line.reason == Reason.NOISY:
            wide += 1
        else:
            names = modules.setdefault((line.cause, _quantity(line)), [])
            if line.module not in names:
                names.append(line.module)
    reasons: list[str] = []
    if wide:
        reasons.append(
            f"UNCLEAR: the interval [low, high] of {wide} exponents reaches beyond what is allowed;"
            f" use more seeds, or {axis}s further apart"
        )
    for (cause, quantity), names in list(modules.items())[:CAUSES]:
        reasons.append(f"UNCLEAR, {_joined(names)}, {quantity}: {cause}")
    if len(modules) > CAUSES:
        more = len(modules) - CAUSES
        reasons.append(f"UNCLEAR: {more} more causes are in the column cause of check.exponents")
    return reasons


def _joined(modules: list[str]) -> str:
    """Return the modules in few words; the model itself is the module without a name."""
    names = [name for name in modules if name]
    alike: dict[str, list[str]] = {}  # layers of one stack
    for name in names:
        alike.setdefault(stack_of(name), []).append(name)
    parts = [common_name(group) for group in alike.values()]
    if len(parts) > GROUPS:
        parts = [*parts[:GROUPS], f"{len(parts) - GROUPS} more"]
    if len(names) < len(modules):
        parts.append("(the model)")
    return " and ".join(parts)


def _rows(judgements: Sequence[Judgement], axis: str) -> tuple[list[tuple[str, ...]], str]:
    """Return everything but PASS, or the main rows of a check that passes, and what is left out."""
    groups = sorted(_groups(judgements), key=lambda group: ORDER.index(group[0].verdict))
    selected = [group for group in groups if group[0].verdict != Verdict.PASS]
    if not selected:
        for group in groups:
            if group[0].quantity in MAIN_QUANTITIES and group[0].step > 0:
                selected.append(group)
    if not selected:
        return [], ""
    rows: list[tuple[str, ...]] = [
        ("module", "verdict", "quantity", f"exponent of {SYMBOLS[axis]}", "allowed")
    ]
    for group in selected[:LINES]:
        rows.append(_row(group))
    left_out = len(groups) - len(selected[:LINES])
    words = ""
    if left_out:
        worst = f"all {Verdict.PASS}"
        if len(selected) > LINES:
            worst = f"the worst {selected[LINES][0].verdict}"
        plural = "s" if left_out > 1 else ""
        words = f"... and {left_out} more row{plural}, {worst}"
    return rows, words


def _legend(rows: list[tuple[str, ...]], n: str, axis: str) -> str:
    """Return what the last two columns mean, with those forms only that occur in them."""
    measured = [row[3] for row in rows[1:]]
    exponent = f"exponent e: size (RMS) ~ {n}^e ({n}: {axis})"
    if any(" to " in cell for cell in measured):
        exponent += ", smallest to largest of the modules in the row"
    if any("[" in cell for cell in measured):
        exponent += " [99 % interval]"
    return f"{exponent}; allowed: <= at most, = exactly, both with a margin for noise"


def _groups(judgements: Sequence[Judgement]) -> list[list[Judgement]]:
    """Group judgements that share a row of the table: layers of a stack with the same verdict.

    If several modules return the same tensor, only the first gets a row.
    """
    by_stack: dict[tuple[str, Quantity, int, Verdict], list[Judgement]] = {}
    for line in judgements:
        key = (stack_of(line.module), line.quantity, line.step, line.verdict)
        by_stack.setdefault(key, []).append(line)
    different: dict[tuple[object, ...], list[Judgement]] = {}
    for (_, quantity, step, verdict), group in by_stack.items():
        numbers: list[object] = []
        for line in group:
            if not math.isnan(line.exponent):
                numbers += [round(line.exponent, 6), round(line.low, 6)]
        content = numbers or [line.module for line in group]
        different.setdefault((quantity, step, verdict, tuple(content)), group)
    return list(different.values())


def _row(group: list[Judgement]) -> tuple[str, str, str, str, str]:
    first = group[0]
    if math.isnan(first.exponent):  # judged without a fit
        measured = str(first.reason)
        allowed = ""
    else:
        measured = _range([line.exponent for line in group])
        allowed = _allowed(group)
        if first.verdict != Verdict.PASS:  # the interval decides
            low = min(line.low for line in group)
            high = max(line.high for line in group)
            measured = f"{measured} [{low:+z.2f}, {high:+z.2f}]"
    name = common_name([line.module for line in group]) or "(the model)"
    return name, str(first.verdict), _quantity(first), measured, allowed


def _quantity(line: Judgement) -> str:
    """Return the quantity of a line, with its step after the start."""
    if line.step > 0:
        return f"{line.quantity}, step {line.step}"
    return str(line.quantity)


def _allowed(group: list[Judgement]) -> str:
    """Return what is allowed: `=` and the predicted exponents, or `<=` and the largest ones."""
    bounds = [line.bound for line in group if math.isfinite(line.bound)]
    if bounds:
        return f"<= {_range(bounds)}"
    return f"= {_range([line.predicted for line in group])}"


def _range(exponents: list[float]) -> str:
    known = sorted({round(x, 2) + 0.0 for x in exponents if x == x})
    if not known:
        return "-"
    if len(known) == 1:
        return f"{known[0]:+z.2f}"
    return f"{known[0]:+z.2f} to {known[-1]:+z.2f}"
