"""A plan as people read it, and as a data frame holds it."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from orderone.optimizers.table import ALGORITHMS
from orderone.planning.counterparts import stack_of

if TYPE_CHECKING:
    from orderone.planning.plan import Plan, Row

COLUMNS = ("tensor", "role", "shape", "grows", "mult", "init", "lr", "wd", "eps", "why")


def record(row: "Row") -> dict[str, Any]:
    """A row as plain values; its factors as columns of their own."""
    plain = {
        f.name: getattr(row, f.name) for f in fields(row) if f.name not in ("factors", "growth")
    }
    plain["grows"] = row.grows
    return plain | {
        f"{name}_factor": getattr(row.factors, name) for name in ("std", "lr", "gradient")
    }


def render(plan: "Plan") -> str:
    lines = [plan.headline, *_table([COLUMNS, *compressed(plan.rows)])]
    lines += [
        f"multiplier {m.value:.6g} on the {m.side} of {m.module}: {m.reason}"
        for m in plan.multipliers
    ]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join([*lines, plan.looked])


def compressed(rows: "Sequence[Row]") -> list[tuple[str, ...]]:
    """Layers of a stack with equal cells share a line."""
    lines: dict[tuple, list[Row]] = {}
    for row in rows:
        lines.setdefault((stack_of(row.name), *cells(row)), []).append(row)
    return [(_name([row.name for row in alike]), *key[1:]) for key, alike in lines.items()]


def cells(row: "Row") -> tuple[str, ...]:
    init = f"{row.init_std:.4g}" if row.constant is None else f"={row.constant:.4g}"
    eps = row.eps[1] if isinstance(row.eps, tuple) else row.eps
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
    """`layers.{0..11}.mlp.weight`."""
    if len(names) == 1:
        return names[0]
    first = names[0].split(".")
    last = names[-1].split(".")
    return ".".join(a if a == b else f"{{{a}..{b}}}" for a, b in zip(first, last, strict=True))


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
