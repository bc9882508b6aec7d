"""Origins of the settings of a tensor: factors by axis or adjustment, target over base.

The product of all origins of a tensor, times the values tuned on the base, is its row of the plan.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from orderone.core.text_table import aligned

if TYPE_CHECKING:
    from orderone.planning.plan import Plan
    from orderone.planning.plan_row import Row

NEAR = 1e-9  # factors closer to 1 are rounding
COLUMNS = ("factors of", "tensors", "init", "lr", "wd", "eps", "1 - beta", "mult")


@dataclass(frozen=True)
class Origin:
    """Factors that one axis, adjustment or setting of the user gives to a tensor."""

    name: str
    init: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    betas: tuple[float, float] = (1.0, 1.0)  # of 1 - beta
    multiplier: float = 1.0
    # set by the user for the base; the same at every size
    tuned: bool = False

    @property
    def numbers(self) -> tuple[float, ...]:
        """All factors."""
        return (
            self.init,
            self.lr,
            self.weight_decay,
            self.eps,
            *self.betas,
            self.multiplier,
        )

    @property
    def is_one(self) -> bool:
        """Whether it changes nothing."""
        return all(abs(number - 1) < NEAR for number in self.numbers)


def growth_of(row: "Row", setting: str) -> float:
    """Return the factor of a setting between base and target, without values tuned by the user."""
    factors = [getattr(origin, setting) for origin in row.origins if not origin.tuned]
    return prod(factors, start=1.0)


def origin_lines(rows: "Sequence[Row]") -> list[str]:
    """Return a table of all factors, by origin and role."""
    merged: dict[tuple[str, tuple[float, ...]], list[Row]] = {}
    names: dict[str, None] = {}
    for row in rows:
        for origin in row.origins:
            rounded = tuple(float(f"{number:.4g}") for number in origin.numbers)
            merged.setdefault((origin.name, rounded), []).append(row)
            names[origin.name] = None
    lines: list[tuple[str, ...]] = [COLUMNS]
    for name in names:
        for (origin_name, numbers), rows_of_origin in merged.items():
            if origin_name == name:
                lines.append((name, _tensors(rows_of_origin, rows), *_cells(numbers)))
    return aligned(_without_empty_columns(lines))


def _without_empty_columns(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    return list(zip(*columns, strict=True))


def _tensors(rows: "Sequence[Row]", all_rows: "Sequence[Row]") -> str:
    if len(rows) == sum(row.trained for row in all_rows):
        return f"all ({len(rows)})"
    roles = dict.fromkeys(row.role.value for row in rows)
    return f"{', '.join(roles)} ({len(rows)})"


def _cells(numbers: tuple[float, ...]) -> tuple[str, ...]:
    init, lr, weight_decay, eps, first, second, multiplier = numbers
    if first == second:
        betas = _cell(first)
    else:
        betas = f"{first:.4g}, {second:.4g}"
    return (_cell(init), _cell(lr), _cell(weight_decay), _cell(eps), betas, _cell(multiplier))


def _cell(number: float) -> str:
    if number == 1:
        return ""
    return f"x{number:.4g}"


# --- averaging timescale ------------------------------------------------------------------------


@dataclass(frozen=True)
class Timescale:
    """Averaging timescale 1 / (lr x weight_decay) of tensors, in steps."""

    roles: tuple[str, ...]
    base: float
    target: float


def timescales(rows: "Iterable[Row]", coupled: "Iterable[str]") -> list[Timescale]:
    """Return the timescales of all tensors that decay, equal ones merged.

    Optimizers in `coupled` normalize weight decay along with the gradient and have none.
    """
    excluded = set(coupled)
    merged: dict[tuple[float, float], dict[str, None]] = {}
    for row in rows:
        shrinkage = row.lr * row.weight_decay
        if not shrinkage or row.optimizer in excluded or not row.trained:
            continue
        base = shrinkage / (growth_of(row, "lr") * growth_of(row, "weight_decay"))
        key = (float(f"{1 / base:.6g}"), float(f"{1 / shrinkage:.6g}"))
        merged.setdefault(key, {})[row.role.value] = None
    return [Timescale(tuple(roles), *key) for key, roles in merged.items()]


def timescale_lines(plan: "Plan", coupled: "Iterable[str]") -> list[str]:
    """Return the invariant and the averaging timescales of base and target in words."""
    sizes = plan.settings.axes
    batch = sizes.get("batch")
    tokens = sizes.get("tokens")
    scales = timescales(plan.rows, coupled)
    lines: list[str] = []
    for scale in scales:
        if len(scales) > 1:
            of = f" of {', '.join(scale.roles)}"
        else:
            of = ""
        line = (
            f"averaging timescale 1 / (lr x weight_decay){of}: base {scale.base:.4g} steps, target"
            f" {scale.target:.4g} steps"
        )
        if batch is not None:
            line += (
                f"; base {scale.base * batch[0]:.4g} tokens, target {scale.target * batch[1]:.4g}"
                " tokens (if batch counts tokens; otherwise samples)"
            )
        lines.append(line)
        if batch is not None and tokens is not None:
            base = tokens[0] / batch[0] / scale.base
            target = tokens[1] / batch[1] / scale.target
            lines.append(
                f"lr x weight_decay x tokens / batch{of}: base {base:.4g}, target {target:.4g}"
            )
    if not scales and any(row.weight_decay for row in plan.rows):
        lines.append(
            "weight decay is added to the gradient and normalized with it: it has no averaging"
            " timescale"
        )
    return lines
