"""A plan as text, and a row as a record of a data frame."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from orderone.optimizers.table import ALGORITHMS
from orderone.planning.counterparts import stack_of

if TYPE_CHECKING:
    from orderone.planning.plan import Plan, Row

COLUMNS = ("tensor", "role", "shape", "grows", "mult", "init", "lr", "wd", "eps", "why")


def record(row: "Row") -> dict[str, object]:
    """Return a row as plain values, with its factors as separate columns."""
    plain: dict[str, object] = {}
    for field in fields(row):
        if field.name not in ("factors", "growth"):
            plain[field.name] = getattr(row, field.name)
    plain["grows"] = row.grows
    for name in ("std", "lr", "gradient"):
        plain[f"{name}_factor"] = getattr(row.factors, name)
    return plain


def render(plan: "Plan") -> str:
    """Return headline, table, multipliers and notes of a plan."""
    lines = [plan.headline, *_table([COLUMNS, *compressed(plan.rows)])]
    for multiplier in plan.multipliers:
        place = f"the {multiplier.side} of {multiplier.module}"
        lines.append(f"multiplier {multiplier.value:.6g} on {place}: {multiplier.reason}")
    for note in plan.notes:
        lines.append(f"note: {note}")
    return "\n".join([*lines, plan.looked])


def compressed(rows: "Sequence[Row]") -> list[tuple[str, ...]]:
    """Return the lines of the table; layers of a stack with equal cells share one."""
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault((stack_of(row.name), *cells(row)), []).append(row.name)
    lines: list[tuple[str, ...]] = []
    for (_, *row_cells), layers in names.items():
        lines.append((_name(layers), *row_cells))
    return lines


def cells(row: "Row") -> tuple[str, ...]:
    """Return the cells of a row, without its name."""
    init = f"{row.init_std:.4g}"
    if row.constant is not None:
        init = f"={row.constant:.4g}"
    eps = row.eps
    if isinstance(eps, tuple):
        eps = eps[1]
    numbers = (
        f"{row.multiplier:.4g}",
        init,
        f"{row.lr:.4g}",
        f"{row.weight_decay:.4g}",
        "" if eps is None else f"{eps:.3g}",
    )
    shape = "x".join(map(str, row.shape)) or "scalar"
    optimizer = f" ({row.optimizer})" if ALGORITHMS[row.optimizer].rest else ""
    return (row.role + optimizer, shape, row.grows, *numbers, row.reason)


def _name(names: list[str]) -> str:
    """Return the common name of layers: `layers.{0..11}.mlp.weight`."""
    if len(names) == 1:
        return names[0]
    first = names[0].split(".")
    last = names[-1].split(".")
    parts: list[str] = []
    for start, end in zip(first, last, strict=True):
        parts.append(start if start == end else f"{{{start}..{end}}}")
    return ".".join(parts)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [0] * len(COLUMNS)
    for row in rows:
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], len(cell))
    lines: list[str] = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return lines
