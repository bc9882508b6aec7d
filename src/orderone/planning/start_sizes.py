"""The start of the base beside order one: which tensors are too small or too large, by how much.

A matrix or lookup table is of order one if its output has the size of its input (`rules.starts`).
A readout may be smaller, down to zero: small logits cost nothing, large ones do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.core.text_table import printable, wrapped
from orderone.planning.counterparts import common_name, stack_of
from orderone.planning.start_outputs import FAR, Kind, OutputSize

if TYPE_CHECKING:
    from orderone.planning.plan_row import Row


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
    """Sizes of all matrices and lookup tables of the base beside order one.

    `outputs` has measured activations, attention scores and logits, if there are any.
    """

    sizes: tuple[StartSize, ...]
    outputs: tuple[OutputSize, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """One sentence for what is too small, and one for what is too large.

        Activations, scores and logits have sentences of their own.
        """
        result: list[str] = []
        for verdict in ("small", "large"):
            off = [size for size in self.sizes if size.verdict == verdict]
            if not off:
                continue
            ratios = sorted(size.ratio for size in off)
            note = (
                f"{len(off)} of {len(self.sizes)} matrices and embeddings of the base start"
                f" too {verdict}: their sizes are {ratios[0]:.3g} to {ratios[-1]:.3g} times those"
                " that give outputs of order one (init='fan-in' starts with such sizes)"
            )
            if verdict == "small":
                result.append(with_code(note, "start-too-small"))
            else:
                result.append(with_code(note, "start-too-large"))
        for kind in Kind:
            result += self._findings_of(kind)
        return tuple(result)

    def _findings_of(self, kind: Kind) -> list[str]:
        """Return sentences on measured outputs of one kind."""
        of_kind = [output for output in self.outputs if output.kind == kind]
        result: list[str] = []
        for verdict in ("small", "large"):
            off = [output for output in of_kind if output.verdict == verdict]
            if not off:
                continue
            sizes = sorted(output.size for output in off)
            worst = max(off, key=lambda output: abs(_log(output.ratio)))
            noun = kind.value
            if kind == Kind.ACTIVATION:
                noun = "activations"
            note = (
                f"{len(off)} of {len(of_kind)} measured {noun} start too {verdict}: RMS"
                f" {sizes[0]:.3g} to {sizes[-1]:.3g}"
            )
            if worst.name:
                note += f" (worst: module {worst.name!r})"
            note += f"; expected {worst.expected}"
            if verdict == "small":
                result.append(with_code(note, "outputs-too-small"))
            else:
                result.append(with_code(note, "outputs-too-large"))
        return result

    @property
    def summary(self) -> str:
        """The whole start in one line."""
        parts: list[str] = []
        for noun, several in (("tensors", self.sizes), ("outputs", self.outputs)):
            if not several:
                continue
            counts: dict[str, int] = dict.fromkeys(("fine", "small", "large"), 0)
            for each in several:
                counts[each.verdict] += 1
            words = [f"{number} {word}" for word, number in counts.items() if number]
            parts.append(f"{len(several)} {noun}: {', '.join(words)}")
        return "; ".join(parts) or "no size is known"

    def with_outputs(self, outputs: tuple[OutputSize, ...]) -> "StartReport":
        """Return the report with measured activations, scores and logits."""
        return replace(self, outputs=outputs)

    def __str__(self) -> str:
        """Return the summary, the findings, and one line for every stack of tensors and outputs."""
        lines = [self.summary]
        for finding in self.findings or ("the start is near order one everywhere",):
            lines += wrapped(finding, indent=0)
        stacks: dict[tuple[str, str], list[StartSize]] = {}
        for size in self.sizes:
            stacks.setdefault((stack_of(size.name), f"{size.ratio:.2g}"), []).append(size)
        for (_, ratio), layers in stacks.items():
            name = common_name([layer.name for layer in layers])
            first = layers[0]
            words = f"{first.size:.4g} instead of {first.order_one:.4g}, x{ratio}, {first.verdict}"
            lines.append(f"  {name}: {words}")
        for output in self.outputs:
            if output.name:
                place = f"{output.kind} of {output.name}"
            else:
                place = str(output.kind)
            lines.append(f"  {place}: {output.size:.3g}, {output.expected}, {output.verdict}")
        return printable("\n".join(lines))


def _log(ratio: float) -> float:
    """Return the logarithm of a ratio; infinite for 0, inf and nan."""
    if ratio > 0 and math.isfinite(ratio):
        return math.log(ratio)
    return math.inf


def start_report(rows: "Sequence[Row]") -> StartReport:
    """Return the start of a plan's base."""
    sizes: list[StartSize] = []
    for row in rows:
        if row.order_one is not None and row.base_std is not None:
            size = row.base_std * row.init_scale
            sizes.append(StartSize(row.name, row.role, size, row.order_one))
    return StartReport(tuple(sizes))
