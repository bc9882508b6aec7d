"""Results of a study: moments that all runs recorded, by layer, quantity and step."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from orderone.measure import records
from orderone.measure.alignment_ratios import COLUMNS as ALIGNMENT_COLUMNS
from orderone.measure.alignment_ratios import MeasuredAlignment
from orderone.measure.fit import Fit, fit_exponents
from orderone.measure.runs import WIDTH, Run
from orderone.observe.moments import Moments
from orderone.observe.precision import Precision
from orderone.observe.quantities import Quantity
from orderone.planning import Plan
from orderone.planning.build import Family
from orderone.theory.exponents.updates import KINDS

if TYPE_CHECKING:
    import pandas as pd

RunKey = tuple[int, int]  # size and seed of a run
Line = tuple[str, Quantity, int]  # layer, quantity, step
ByRun = dict[RunKey, Moments]
FAINT = 1e-30  # sizes below this are zero


@dataclass(frozen=True)
class Observations:
    """The records of all runs."""

    axis: str  # width or depth
    key: Callable[[str], str]  # the common name of a layer in different runs
    runs: tuple[Run, ...] = ()

    @cached_property
    def _moments(self) -> dict[Line, ByRun]:
        """Moments of every line in every run: recorded ones, and those derived from them."""
        moments: dict[Line, ByRun] = {}
        for run in self.runs:
            self._add_recorded(moments, run)
            self._add_penalties(moments, run)
        return moments

    def _add_recorded(self, moments: dict[Line, ByRun], run: Run) -> None:
        """Add the rows of a run; layers with the same key are counted together."""
        run_key = (run.size, run.seed)
        for step, name, quantity, size in run.rows:
            by_run = moments.setdefault((self.key(name), quantity, step), {})
            if run_key in by_run:
                size = by_run[run_key] + size
            by_run[run_key] = size

    def _add_penalties(self, moments: dict[Line, ByRun], run: Run) -> None:
        """Divide penalties by the first gradient of their tensor."""
        run_key = (run.size, run.seed)
        for tensor, penalty in run.penalties.items():
            name = self.key(tensor)
            for step in range(run.steps):
                gradient = moments.get((name, Quantity.GRADIENT, step), {}).get(run_key)
                if gradient is not None and gradient.rms > FAINT:
                    penalties = moments.setdefault((name, Quantity.PENALTY, 0), {})
                    penalties[run_key] = _moments_of_number(penalty / gradient.rms)
                    break

    # --- reading ----------------------------------------------------------------------------------

    @cached_property
    def complete(self) -> tuple[Run, ...]:
        """Runs that did not end early, if these are enough for a fit; otherwise all runs."""
        complete = []
        run_keys = []
        for run in self.runs:
            if not run.ended:
                complete.append(run)
                run_keys.append((run.size, run.seed))
        if _can_be_fitted(run_keys):
            return tuple(complete)
        return self.runs

    @cached_property
    def steps(self) -> int:
        """Number of updates that all complete runs have made."""
        return min((run.steps for run in self.complete), default=0)

    def first_update(self, name: str, since: int = 0, resolution: float = 0.0) -> int:
        """Return the first step in which a gradient changes the tensor in every run, or -1.

        Schedules and tensors may start at zero; before that step only weight decay changes them.
        Updates below `resolution` times the initial weights do not count.
        """
        weights = self.at(name, Quantity.WEIGHT, 0)
        for step in range(since, self.steps):
            gradients = self.at(name, Quantity.GRADIENT, step).values()
            updates = self.at(name, Quantity.UPDATE, step)
            sizes = [moments.rms for moments in (*gradients, *updates.values())]
            if sizes and min(sizes) > FAINT and _are_resolved(updates, weights, resolution):
                return step
        return -1

    def at(self, name: str, quantity: Quantity, step: int) -> Mapping[RunKey, Moments]:
        """Return the moments of a module or tensor in every run."""
        return self._moments.get((name, quantity, step), {})

    def names(self, quantity: Quantity) -> list[str]:
        """Return the modules or tensors that have this quantity."""
        names: dict[str, None] = {}
        for name, recorded, _ in self._moments:
            if recorded == quantity:
                names[name] = None
        return list(names)

    def largest(self, name: str, quantity: Quantity) -> float:
        """Return the largest RMS over all steps and runs; NaN if there is no record."""
        last = max((run.steps for run in self.runs), default=0)
        sizes = []
        for step in range(last + 1):
            for moments in self.at(name, quantity, step).values():
                sizes.append(moments.rms)
        return max(sizes, default=math.nan)

    def fits(
        self, wanted: Iterable[tuple[Quantity, int]], confidence: float
    ) -> Iterator[tuple[Line, Fit]]:
        """Fit these quantities and steps, for each layer with a positive size in every run."""
        wanted = set(wanted)
        run_keys = {(run.size, run.seed) for run in self.complete}
        # lines that were recorded in the same runs are fitted together
        groups: dict[tuple[RunKey, ...], list[tuple[Line, list[float]]]] = {}
        for line, by_run in self._moments.items():
            _, quantity, step = line
            if (quantity, step) not in wanted:
                continue
            sizes = {key: moments.rms for key, moments in by_run.items() if key in run_keys}
            # decay is not random, and is measured with one seed
            if quantity != Quantity.DECAY and sizes.keys() != run_keys:
                continue
            positive = all(math.isfinite(size) and size > FAINT for size in sizes.values())
            if positive and _can_be_fitted(sizes):
                groups.setdefault(tuple(sizes), []).append((line, list(sizes.values())))
        for keys, members in groups.items():
            rows = [sizes for _, sizes in members]
            fitted = fit_exponents([size for size, _ in keys], rows, confidence=confidence)
            for (line, _), fit in zip(members, fitted, strict=True):
                yield line, fit

    def fit_of_largest(
        self, name: str, quantity: Quantity, step: int, confidence: float
    ) -> Fit | None:
        """Fit the largest size of all steps until `step`; None if a run lacks records.

        Changes are sums of steps. Where later steps of small models turn back, the size at `step`
        seems to grow with the width; the largest size on the way does not.
        """
        sizes: list[int] = []
        largest: list[float] = []
        for run in self.complete:
            recorded = []
            for earlier in range(step + 1):
                moments = self.at(name, quantity, earlier).get((run.size, run.seed))
                if moments is not None:
                    recorded.append(moments.rms)
            if not recorded or not FAINT < max(recorded) < math.inf:
                return None
            sizes.append(run.size)
            largest.append(max(recorded))
        [fit] = fit_exponents(sizes, [largest], confidence=confidence)
        return fit

    # --- tables -----------------------------------------------------------------------------------

    def frame(self, provenance: Mapping[str, object]) -> "pd.DataFrame":
        """Return a table: one row for each run, step, module (or tensor) and quantity."""
        rows = []
        for (name, quantity, step), by_run in self._moments.items():
            for (size, seed), moments in by_run.items():
                rows.append((size, seed, step, name, quantity.value, *moments.row()))
        columns = [self.axis, "seed", "step", "module", "quantity", *records.SIZES]
        return records.table(rows, columns, provenance)

    def alignment(
        self, provenance: Mapping[str, object], kinds: Collection[str] = KINDS
    ) -> MeasuredAlignment | None:
        """Return the alignment across the last step, where it was measured."""
        rows = []
        for run in self.runs:
            for layer, role, tokens, kind, ratio in run.ratios:
                if kind in kinds:
                    row = (run.size, run.seed, run.steps, layer, role, tokens, kind, ratio)
                    rows.append(row)
        if rows:
            return MeasuredAlignment(records.table(rows, ALIGNMENT_COLUMNS, provenance))
        return None

    def alignment_exponents(self, kind: str) -> tuple[dict[str, float], dict[str, float]]:
        """Return the exponents of one kind of alignment by layer and by role.

        They are those of `alignment`, without its tables.
        """
        logs: dict[tuple[str, str], dict[RunKey, float]] = {}  # by role and layer
        for run in self.runs:
            for layer, role, _, measured, ratio in run.ratios:
                if measured == kind and math.isfinite(ratio) and ratio > 0:
                    logs.setdefault((role, layer), {})[run.size, run.seed] = math.log(ratio)
        by_layer: dict[str, float] = {}
        by_role: dict[str, float] = {}
        for (_, layer), sizes in logs.items():
            if _can_be_fitted(sizes):
                by_layer[layer] = _slope(sizes)
        for role in {role for role, _ in logs}:
            layers = [sizes for (other, _), sizes in logs.items() if other == role]
            keys = {key for sizes in layers for key in sizes}
            complete = [sizes for sizes in layers if sizes.keys() == keys]
            means = {key: math.fsum(sizes[key] for sizes in complete) for key in keys}
            if complete and _can_be_fitted(means):
                by_role[role] = _slope(means) / len(complete)
        return by_layer, by_role

    def losses(self, provenance: Mapping[str, object]) -> "pd.DataFrame":
        """Return a table: one row for each run and step."""
        rows = []
        for run in self.runs:
            for step, loss in enumerate(run.losses):
                rows.append((run.size, run.seed, step, loss))
        return records.table(rows, [self.axis, "seed", "step", "loss"], provenance)


def _slope(logs: Mapping[RunKey, float]) -> float:
    """Return the slope of logarithms of sizes over the logarithm of the axis."""
    x = np.log([float(size) for size, _ in logs])
    x = x - x.mean()
    return float(x @ np.array([*logs.values()]) / (x @ x))


def _moments_of_number(value: float) -> Moments:
    return Moments(1, value * value, value, value, float(math.isfinite(value)))


def _are_resolved(
    updates: Mapping[RunKey, Moments], weights: Mapping[RunKey, Moments], resolution: float
) -> bool:
    """Return whether all updates are larger than the rounding of the weights that they change."""
    for run, update in updates.items():
        if run in weights and update.rms < resolution * weights[run].rms:
            return False
    return True


def _can_be_fitted(run_keys: Iterable[RunKey]) -> bool:
    """Return whether there are three runs of at least two sizes."""
    sizes = [size for size, _ in run_keys]
    return len(sizes) > 2 and len(set(sizes)) > 1


@dataclass(frozen=True)
class StudyResult:
    """Everything that the verdict of a coordinate check depends on."""

    observations: Observations
    sizes: tuple[int, ...]
    largest: nn.Module
    no_growth: bool  # every size gives the same shapes
    rule: str
    depth_rule: object  # the `depth` of the plan
    family: Family | None  # None: the model could not be planned
    plans: Mapping[int, Plan]  # requirements of the rule, by size
    user_plan: Plan | None  # the plan that `build` returned for the largest model
    has_user_optimizer: bool  # `build` returned an optimizer: the gauge is not known
    first_step: int  # the first step that follows the law of the optimizer
    frozen: tuple[str, ...]  # patterns of tensors that are not trained on purpose
    nonlinear: frozenset[str]  # layers whose output is not proportional to their tensors
    undone: tuple[str, ...]  # changes that the applied plan leaves to the model's code
    schedule_fault: str  # fault of the schedule; empty if there is none
    notes: tuple[str, ...]
    troubles: tuple[str, ...]  # notes that make PASS impossible
    precision: Precision
    provenance: Mapping[str, object]
    interrupted: bool
    # the loss is one function of the model's output, the same at every size
    same_loss: bool = False

    @property
    def axis(self) -> str:
        """Axis along which the models differ: width, depth, expert count or rank."""
        return self.observations.axis

    @property
    def in_width(self) -> bool:
        """Whether the models differ in width. Otherwise the residual stream is of order one."""
        return self.axis == WIDTH
