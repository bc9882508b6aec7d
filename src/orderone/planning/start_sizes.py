"""The start of the base beside order one: which tensors are too small or too large, by how much.

A matrix or lookup table is of order one if its output has the size of its input (`rules.starts`).
A readout may be smaller, down to zero: small logits cost nothing, large ones do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.core.text_table import printable, wrapped
from orderone.planning.counterparts import common_name, stack_of

if TYPE_CHECKING:
    from orderone.planning.plan import Row

FAR = 3.0  # a factor that changes what a model learns first; fan-in and Xavier differ by less


@dataclass(frozen=True)
class StartSize:
    """Initial size of a tensor of the base, and the size at which its output is of order one."""

    name: str
    role: Role
    size: float
    order_one: float

    @property
    def ratio(self) -> float:
        """Size over order one: below 1 is too small."""
        return self.size / self.order_one

    @property
    def verdict(self) -> str:
        """`small`, `large` or `fine`; zero is a choice, not a mistake."""
        if self.ratio > FAR:
            return "large"
        if 0 < self.ratio < 1 / FAR and self.role != Role.READOUT:
            return "small"
        return "fine"


@dataclass(frozen=True)
class StartReport:
    """Sizes of all matrices and lookup tables of the base beside order one."""

    sizes: tuple[StartSize, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        """One sentence for what is too small, and one for what is too large."""
        result: list[str] = []
        for verdict in ("small", "large"):
            off = [size for size in self.sizes if size.verdict == verdict]
            if not off:
                continue
            ratios = sorted(size.ratio for size in off)
            note = (
                f"{len(off)} of {len(self.sizes)} matrices and tables of the base start too"
                f" {verdict}: {ratios[0]:.3g} to {ratios[-1]:.3g} of order one; init='fan-in'"
                " starts base and target at order one"
            )
            if verdict == "small":
                result.append(with_code(note, "start-too-small"))
            else:
                result.append(with_code(note, "start-too-large"))
        return tuple(result)

    def __str__(self) -> str:
        """Return the findings, and one line for every stack of tensors."""
        lines: list[str] = []
        for finding in self.findings or ("every matrix and table starts near order one",):
            lines += wrapped(finding, indent=0)
        stacks: dict[tuple[str, str], list[StartSize]] = {}
        for size in self.sizes:
            stacks.setdefault((stack_of(size.name), f"{size.ratio:.2g}"), []).append(size)
        for (_, ratio), layers in stacks.items():
            name = common_name([layer.name for layer in layers])
            first = layers[0]
            words = f"{first.size:.4g} instead of {first.order_one:.4g}, x{ratio}, {first.verdict}"
            lines.append(f"  {name}: {words}")
        return printable("\n".join(lines))


def start_report(rows: "Sequence[Row]") -> StartReport:
    """Return the start of a plan's base."""
    sizes: list[StartSize] = []
    for row in rows:
        if row.order_one is not None and row.base_std is not None:
            size = row.base_std * row.init_scale
            sizes.append(StartSize(row.name, row.role, size, row.order_one))
    return StartReport(tuple(sizes))
