"""A plan as text, and a row as a record of a data frame."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from orderone.core.errors import hint_on_codes
from orderone.core.text_table import aligned, text_width, wrapped
from orderone.optimizers.table import find_record
from orderone.planning.counterparts import common_name, stack_of
from orderone.planning.draw import describe
from orderone.planning.origins import origin_lines, timescale_lines
from orderone.rules.axes import INDEPENDENT, PROPORTIONAL, horizon

if TYPE_CHECKING:
    from orderone.planning.plan import Plan
    from orderone.planning.plan_row import Block, Row

COLUMNS = ("tensor", "role", "shape", "grows", "mult", "init", "lr", "wd", "eps", "why")
NUMBERS = ("mult", "lr", "wd", "eps")
LEGEND = (
    "init: RMS of initial values (=1: all are 1); grows: model over base; wd: weight decay;"
    " mult: factor of a hook (1: none); eps scales like the predicted gradient; group: tensors with"
    " equal lr, wd, eps"
)


def record(row: "Row") -> dict[str, object]:
    """Return a row as plain values, with its factors as separate columns."""
    plain: dict[str, object] = {}
    for field in fields(row):
        if field.name not in ("factors", "growth", "blocks", "draw", "horizon", "origins"):
            plain[field.name] = getattr(row, field.name)
    plain["grows"] = row.grows
    plain["start"] = None if row.draw is None else row.draw.start
    for block in row.blocks:
        plain[f"{block.kind}_lr"] = block.lr
        plain[f"{block.kind}_init_std"] = block.init_std
    for name in ("std", "lr", "gradient"):
        plain[f"{name}_factor"] = getattr(row.factors, name)
    return plain


def render(plan: "Plan", wide: bool = False, origins: bool | None = None) -> str:
    """Return headline, table, factors by origin, multipliers, notes and the start of a plan.

    The table has one line per row if the terminal is wide enough, or if it is asked for (`wide`).
    """
    rows = [COLUMNS, *compressed(plan.rows)]
    table = aligned(rows)
    remarks: list[str] = []
    for multiplier in plan.multipliers:
        place = f"the {multiplier.side} of {multiplier.module}"
        remarks.append(f"multiplier {multiplier.value:.6g} on {place}: {multiplier.reason}")
    for note in plan.notes:
        remarks.append(f"note: {note}")
    for finding in plan.start.findings:
        remarks.append(f"start: {finding}")
    if not plan.settings.decay_vectors:
        remarks.append("no weight decay on gains, biases and scalars (decay_vectors=False)")
    if any(row.draw for row in plan.rows):
        remarks.append(describe(plan.settings.init, plan.rows))
    if origins is None:
        origins = _has_further_axes(plan)
    if origins:
        by_origin = origin_lines(plan.rows)
    else:
        by_origin = []
    remarks += [LEGEND, plan.probe_summary]
    if origins:
        remarks = [*_horizon_lines(plan), *remarks]
    remarks += hint_on_codes(remarks)
    if wide:
        return "\n".join([plan.headline, *table, *by_origin, *remarks])
    if max(map(len, table)) > text_width():
        table = _narrow_table(rows)
    lines = [*wrapped(plan.headline, indent=0), *table, *by_origin]
    for remark in remarks:
        lines += wrapped(remark, indent=0)
    return "\n".join(lines)


def _has_further_axes(plan: "Plan") -> bool:
    """Return whether a plan has axes beside width and depth, or weight decay that follows one."""
    return bool(plan.settings.axes) or plan.settings.decay not in (INDEPENDENT, PROPORTIONAL)


def _horizon_lines(plan: "Plan") -> list[str]:
    """Return sizes of the training, rules with their sources, and averaging timescales."""
    settings = plan.settings
    lines: list[str] = []
    for name, (base, target) in settings.axes.items():
        lines.append(f"{name} x{target / base:.4g} ({base:.4g} -> {target:.4g})")
    if "tokens" in settings.axes and "batch" not in settings.axes:
        lines.append("batch size as at the base")
    if lines:
        lines = [", ".join(lines)]
    else:
        lines = []
    if settings.horizon is not None:
        for axis in horizon(settings.horizon):
            if axis.name in settings.axes:
                rule = f"{axis.name}, rule {settings.horizon!r} with m the ratio: {axis.formula}"
                lines.append(f"{rule} ({axis.source})")
    elif "batch" in settings.axes or "tokens" in settings.axes:
        lines.append("horizon=None: learning rates do not follow batch size and tokens")
    coupled: list[str] = []
    for name in dict.fromkeys(row.optimizer for row in plan.rows):
        record = find_record(name)
        if record is None or not (record.decouples_decay or record.update_law.gradient == 1):
            coupled.append(name)
    return [*lines, f"weight decay: {settings.decay!r}", *timescale_lines(plan, coupled)]


def _narrow_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return two lines for every row: its name and the reason, and the numbers below.

    Columns of numbers that are the same in every row are left out and listed once. If the numbers
    are too wide as a table, every number follows the name of its column.
    """
    columns = list(zip(*rows, strict=True))
    names, *numbers, reasons = columns
    different: list[tuple[str, ...]] = []
    common: list[str] = []
    for head, *cells in numbers:
        if len(rows) > 2 and len(set(cells)) == 1 and head in NUMBERS:
            common.append(f"{head} {cells[0]}")
        else:
            different.append((head, *cells))
    cells_of_rows = list(zip(*different, strict=True))
    table = [f"  {line}" for line in aligned(cells_of_rows)]
    if max(map(len, table)) <= text_width():
        settings = [[line] for line in table]
    else:
        settings = [[], *(_settings(cells_of_rows[0], cells) for cells in cells_of_rows[1:])]
    lines: list[str] = []
    for name, lines_of_row, reason in zip(names, settings, reasons, strict=True):
        lines += [*_name_and_reason(name, reason), *lines_of_row]
    if common:
        lines += wrapped(f"all tensors: {', '.join(common)}", indent=0)
    return lines


def _settings(heads: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Return the cells of a row as a paragraph: `hidden, shape 128x128, init 0.05, lr 0.003`."""
    role, *others = cells
    words = [role]
    for head, cell in zip(heads[1:], others, strict=True):
        if cell:
            words.append(f"{head} {cell}")
    return wrapped(", ".join(words))


def _name_and_reason(name: str, reason: str) -> list[str]:
    """Return lines with the name and the reason; a name that is too long is broken at its dots."""
    width = text_width()
    if len(name) < width:
        return wrapped(f"{name}: {reason}", indent=0)
    lines = [""]
    for part in re.split(r"(?<=[._])", f"{name}:"):
        if len(lines[-1]) + len(part) > width:
            lines.append("  ")
        lines[-1] += part
    fitting: list[str] = []
    for line in filter(str.strip, lines):
        fitting += [line[start : start + width] for start in range(0, len(line), width)]
    return [*fitting, *wrapped(reason)]


def compressed(rows: "Sequence[Row]") -> list[tuple[str, ...]]:
    """Return the lines of the table; layers of a stack with equal cells share one."""
    names: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        blocks: list[str] = []
        for block in row.blocks:
            blocks += block_cells(row, block)
        names.setdefault((stack_of(row.name), *cells(row), *blocks), []).append(row)
    lines: list[tuple[str, ...]] = []
    for layers in names.values():
        row = layers[0]
        name = common_name([layer.name for layer in layers])
        lines.append((name, *cells(row)))
        for block in row.blocks:
            block_line = block_cells(row, block)
            if block_line[3:-1] != cells(row)[3:-1]:
                lines.append((f"{name}[{_spans(block)}]", *block_line))
    return lines


def _spans(block: "Block") -> str:
    """Return rows as indices: `0:128`, or `0:16, 48:64, ...`."""
    spans = [f"{first}:{last}" for first, last in block.ranges]
    if len(spans) > 2:
        spans = [*spans[:2], "..."]
    return ":, " * block.axis + ", ".join(spans)


def block_cells(row: "Row", block: "Block") -> tuple[str, ...]:
    """Return the cells of rows with settings of their own."""
    like = replace(
        row,
        init_std=block.init_std,
        constant=block.constant,
        lr=block.lr,
        weight_decay=block.weight_decay,
        eps=block.eps,
        reason=f"rows of {block.kind}",
    )
    return cells(like)


def cells(row: "Row") -> tuple[str, ...]:
    """Return the cells of a row, without its name."""
    init = f"{row.init_std:.4g}"
    if row.constant is not None:
        init = f"={row.constant:.4g}"
    eps = row.eps
    if isinstance(eps, tuple):
        eps = eps[1]
    numbers = (
        f"{row.hook_multiplier:.4g}",
        init,
        f"{row.lr:.4g}",
        f"{row.weight_decay:.4g}",
        "" if eps is None else f"{eps:.3g}",
    )
    shape = "x".join(map(str, row.shape)) or "scalar"
    if _has_rest(row.optimizer):
        optimizer = f" ({row.optimizer})"
    else:
        optimizer = ""
    return (row.role + optimizer, shape, row.grows, *numbers, row.reason)


def _has_rest(optimizer: str) -> bool:
    """Return whether an optimizer leaves tensors to another; False for an unregistered class."""
    record = find_record(optimizer)
    return record is not None and record.rest is not None
