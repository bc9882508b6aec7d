"""Sizes in a long training, relative to their start, with the corridor that theory predicts.

    with SizeMonitor(model, optimizer, plan=plan, every=100) as monitor:
        for ...:
            ... one step ...
            values = monitor.read()  # {"sizes/blocks.0.mlp": 1.08, ...} after every 100th step
            if monitor.outside: break

Let s(t) be the RMS of the output of a module at step t. Under muP the sizes at every step are those
of the base, whatever the width. At the start they may be smaller or larger by a factor g that is
known: a readout starts with g = (width ratio)^-1/2, and catches up in training. So s(t) / s(0) is
expected between min(1, 1/g) and max(1, 1/g), times a factor of order one that depends on the task.
The corridor is

    low * min(1, 1/g)  <=  s(t) / s(0)  <=  high * max(1, 1/g),

where `low` and `high` are chosen by the user, for example from a training of the base.

Processes that train one model together combine their sums of squares, so that the size of a sharded
tensor is that of the whole tensor. All of them must call `read`.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.core.reals import real
from orderone.measure.inputs import CorridorInput, PatternsInput
from orderone.measure.probe import probe
from orderone.measure.processes import of_all_processes
from orderone.measure.recording import Probe
from orderone.observe.moments import Moments
from orderone.planning import Plan, Row

if TYPE_CHECKING:
    import pandas as pd

CORRIDOR = (1 / 32, 32.0)
QUANTITIES = ("output", "weight")
PREFIX = "sizes/"


@dataclass(frozen=True)
class Size:
    """Size of one module or tensor at one step; `low` and `high` are its corridor."""

    step: int
    name: str
    rms: float
    relative: float  # to the start
    low: float
    high: float
    finite: float  # fraction of finite entries

    @property
    def reason(self) -> str | None:
        """Why the size is outside its corridor; None if it is inside."""
        if self.finite < 1 or not math.isfinite(self.rms):
            return f"{self.name} has entries that are not finite at step {self.step}"
        if self.low <= self.relative <= self.high:
            return None
        return (
            f"{self.name} has RMS {self.rms:.3g} at step {self.step}, {self.relative:.3g} times"
            f" that at the start; expected {self.low:.3g} to {self.high:.3g} times"
        )


class SizeMonitor:
    """Record sizes of a training every `every` steps; a context manager.

    Args:
        model: The module that is trained; it may be wrapped (DDP) or sharded (FSDP2, tensor
            parallel).
        optimizer: The torch optimizer whose `step` ends a step.
        plan: The plan of the model: what it predicts for the start widens the corridor.
        every: Steps between two records.
        modules: One or several patterns of names of modules, or of tensors for "weight".
        quantity: "output", the outputs of modules, or "weight", the tensors of the model. A
            compiled model stays compiled with "weight" only.
        corridor: Smallest and largest size relative to the start.
        first: Steps done before, if a training continues.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        plan: Plan | None = None,
        every: Count = 100,
        modules: PatternsInput = "*",
        quantity: str = "output",
        corridor: CorridorInput = CORRIDOR,
        first: Count = 0,
    ):
        self.first: int = count(first, "first", least=0)
        self.start: dict[str, float] = {}  # RMS at the start; restore it to continue a training
        low, high = read_corridor(corridor)
        self.low: float = low
        self.high: float = high
        self.quantity: str = one_of(quantity, QUANTITIES, "quantity")
        self.sizes: list[Size] = []
        self.outside: str | None = None  # why a size is outside its corridor
        self._probe = probe(
            model, optimizer, quantities=self.quantity, modules=modules, every=every
        )
        self._stack = ExitStack()
        self._growth: Mapping[str, float] = {}
        self._same: Mapping[str, str] = {}  # modules that return the output of another one
        if plan is not None and self.quantity == "output":
            self._growth = _start_growth(plan)

    def __enter__(self) -> "SizeMonitor":
        self._recording: Probe = self._stack.enter_context(self._probe)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def read(self) -> dict[str, float]:
        """Return the sizes since the last call, relative to the start; empty if there are none.

        Keys are `sizes/NAME`. If a size is outside its corridor, `outside` has the reason.
        """
        values: dict[str, float] = {}
        if not self.sizes:
            self._same = self._recording.same_output
        rows = self._recording.take()
        if rows:
            rows = of_all_processes(rows)
        for step, name, _, moments in rows:
            size = self._size(self.first + step, name, moments)
            if size is not None:
                self.sizes.append(size)
                values[PREFIX + name] = size.relative
                self.outside = self.outside or size.reason
        return values

    def _size(self, step: int, name: str, moments: Moments) -> Size | None:
        if not name:
            return None  # the model itself returns the output of one of its modules
        rms, _, _, finite = moments.row()
        if name not in self.start:
            if not rms > 0:
                return None  # starts at zero: relative to the first size that is not
            self.start[name] = rms
        growth = self._growth.get(self._same.get(name, name), 1.0)
        return Size(
            step=step,
            name=name,
            rms=rms,
            relative=rms / self.start[name],
            low=self.low * min(1.0, 1 / growth),
            high=self.high * max(1.0, 1 / growth),
            finite=finite,
        )

    @property
    def frame(self) -> "pd.DataFrame":
        """All sizes: step, name, rms, relative, low, high, finite."""
        import pandas as pd

        return pd.DataFrame([vars(size) for size in self.sizes])


def read_corridor(corridor: CorridorInput) -> tuple[float, float]:
    """Return the corridor; raise an InputError if it does not contain 1."""
    if len(corridor) != 2:
        raise InputError(
            f"corridor: expected two numbers (smallest, largest), got {corridor!r}",
            argument="corridor",
        )
    low = real(corridor[0], "corridor", least=0)
    high = real(corridor[1], "corridor", above=0)
    if not low < 1 < high:
        raise InputError(
            f"corridor: expected sizes relative to the start, the first below 1 and the second"
            f" above 1; got {low:g} and {high:g}",
            argument="corridor",
        )
    return low, high


def _start_growth(plan: Plan) -> dict[str, float]:
    """Return the factor by which the initial output of a module differs from that of the base."""
    rows: dict[str, Row] = {row.name: row for row in plan.rows}
    growth: dict[str, float] = {}
    for row in plan.rows:
        module, _, tensor = row.name.rpartition(".")
        if tensor != "weight":
            continue
        factor = row.output_growth(rows.get(f"{module}.bias"))
        if factor is not None and factor > 0:
            growth[module] = factor
    return growth
