"""Judge the settings of the optimizer exactly: they are known numbers, not measurements.

The rule asks for a power of the size, tensor by tensor, in the form of the plan: with the
multipliers that were read from the forward code, and no others. The same network can be written in
another gauge (S0 1.2.1): a multiplier n^-t in front of a tensor, with

    initial size      times n^t
    learning rate     times n^(k t)       k = 1 + gradient - weight of the update law
    weight decay      times n^-(k t)      times n^-2t if it is normalized along with the gradient

A multiplier that was not read shows in the initial size. So a tensor is right if both its initial
size and its learning rate are those of the plan, or if both differ by the same t. The second
reading counts only if there can be such a multiplier: the forward pass was not traced, a constant
could not be read, or the model has a constant tensor whose size depends on the width. A bias has
the gauge of the weight beside it.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from orderone.core.errors import code_of
from orderone.core.roles import Role
from orderone.measure.fit import Fit
from orderone.measure.judge.known_numbers import (
    constant_sizes,
    deviation_of_start,
    known_line,
    rates_of,
    settings_by_size,
    slope,
)
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.theory import Theory
from orderone.measure.judge.thresholds import BOUNDARY, DAMPED, DRAWN, EXACT, NEGLIGIBLE
from orderone.measure.judge.verdict import SYMBOLS, Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.quantities import Quantity
from orderone.optimizers.table import record_named
from orderone.planning.plan_row import Row
from orderone.rules.axes import decay_factor

# settings that set a time scale in steps, which is the same at every size
TIME_SCALES = (
    "betas",
    "beta1",
    "beta2",
    "beta3",
    "momentum",
    "dampening",
    "nesterov",
    "alpha",
    "rho",
    "beta2_decay",
    "momentum_decay",
)


@dataclass(frozen=True)
class SettingsJudge:
    """Judge learning rates, initial sizes, weight decay and other settings of all tensors."""

    study: StudyResult
    facts: StudyFacts
    weights: Mapping[str, Fit]  # fitted initial sizes, by tensor
    vanishing: frozenset[str]  # tensors whose gradient is rounding error
    # power of the multiplier in the forward code that a tensor ignores, by tensor
    _ignored: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    def judgements(self) -> list[Judgement]:
        """Return one line for each tensor and setting."""
        theory = self.facts.theory
        lines = [*self._time_scales()]
        if theory is None or not self._rates_are_known:
            return lines
        for name, (_, row) in theory.rows.items():
            if name in self.rates and row.trained:
                lines += self._of_tensor(name, row, theory)
        return lines

    @property
    def _rates_are_known(self) -> bool:
        """Whether the rule says how rates depend on the size.

        With an optimizer of the user, depth may be in the multipliers of branches or in the rates.
        """
        study = self.study
        in_depth = study.axis == "depth"
        return not (in_depth and study.has_user_optimizer and study.depth_rule is None)

    # --- one tensor -------------------------------------------------------------------------------

    def _of_tensor(self, name: str, row: Row, theory: Theory) -> Iterator[Judgement]:
        rates = self.rates[name]
        zero = [size for size, rate in rates.items() if not rate]
        if len(zero) == len(rates):
            return  # no step changes it: `untrained_tensors` judges it
        if zero:
            sizes = ", ".join(map(str, zero))
            cause = f"the learning rate is zero at {self.study.axis} {sizes}, but not at others"
            yield known_line(name, Quantity.RATE, math.nan, math.nan, Verdict.FAIL, cause, row.role)
            return
        law = record_named(row.optimizer).update_law
        rate = slope(rates)
        predicted = theory.exponent(name, lambda row: row.default_lr)
        rate_excess = rate - predicted
        start_excess = self._start_excess(name, theory)
        gauge = self._gauge(name, row, rate_excess, float(law.gauge_weight))
        required = predicted + float(law.gauge_weight) * gauge
        tolerance = BOUNDARY if gauge else EXACT
        verdict = Verdict.PASS
        cause = ""
        if not abs(rate - required) <= tolerance:
            verdict = Verdict.FAIL
            cause = (
                f"the learning rate scales like {self._power(rate)}, the rule requires"
                f" {self._power(required)}"
            )
        line = known_line(name, Quantity.RATE, rate, required, verdict, cause, row.role)
        multiplier = self._ignored_multiplier(line, start_excess, float(law.gauge_weight))
        if multiplier:
            self._ignored[name] = multiplier
            line = replace(line, reason=Reason.MULTIPLIER, multiplier=multiplier)
        yield line
        is_ignored = line.reason == Reason.MULTIPLIER
        if self.study.has_user_optimizer and name in self.weights and not is_ignored:
            yield from self._initial_size(name, row, start_excess, gauge)
        yield from self._penalty(name, row, theory, gauge)
        yield from self._decay_of_zeros(name, row, rate)
        yield from self._eps(name, row, theory, gauge)

    def _ignored_multiplier(self, line: Judgement, start_excess: float, weight: float) -> float:
        """Return the power of a multiplier that a wrong rate and the initial size ignore; or 0.

        A bias starts with any size: it ignores the multiplier that the weight beside it ignores.
        """
        theory = self.facts.theory
        assert theory is not None
        name = line.module
        multiplier = theory.exponent(name, lambda row: row.factors.gauge)
        if line.verdict != Verdict.FAIL or not multiplier or not weight:
            return 0.0
        if not abs(line.exponent - line.predicted - weight * multiplier) <= EXACT:
            return 0.0
        sibling = self._ignored.get(f"{name.rpartition('.')[0]}.weight", 0.0)
        if abs(start_excess - multiplier) <= BOUNDARY or abs(sibling - multiplier) <= EXACT:
            return multiplier
        return 0.0

    def _start_excess(self, name: str, theory: Theory) -> float:
        """Return the power by which the initial size exceeds that of the plan; 0 if unknown."""
        fit = self.weights.get(name)
        if fit is None:
            return 0.0
        predicted = self._predicted_start(name, fit, theory)
        if math.isnan(predicted) or predicted in fit:
            return 0.0
        excess = fit.exponent - predicted
        return excess if abs(excess) > BOUNDARY else 0.0

    def _predicted_start(self, name: str, fit: Fit, theory: Theory) -> float:
        """Return the exponent of the initial size; NaN if the rule does not say it.

        The model's code sets the initial size of tensors that do not grow. They may start smaller
        in large models (torch divides biases by the fan-in), but not larger: nothing that is added
        or applied with a constant size may grow. Layers that are added along with the width may
        start smaller too: code often divides them by a power of the depth.
        """
        predicted = theory.expect(name, Quantity.WEIGHT).exponent
        if self._is_drawn_number(name):
            predicted = math.nan
        row = theory.rows[name][1]
        if row.depth != 1 and self.study.in_width and fit.exponent < predicted:
            return math.nan
        is_fixed = row.role == Role.FIXED and self.study.in_width
        starts = self.study.observations.at(name, Quantity.WEIGHT, 0)
        if math.isnan(predicted) and is_fixed and fit.exponent > DRAWN * deviation_of_start(starts):
            return 0.0
        return predicted

    def _is_drawn_number(self, name: str) -> bool:
        """Return whether a single number is drawn at random: constants have no noise."""
        starts = self.study.observations.at(name, Quantity.WEIGHT, 0).values()
        fit = self.weights.get(name)
        if fit is None or any(moments.entries > 1 for moments in starts):
            return False
        return fit.high - fit.low > EXACT

    def _gauge(self, name: str, row: Row, rate_excess: float, weight: float) -> float:
        """Return t: the power of a multiplier n^-t that was not read from the forward code.

        Sizes and rates that only undo a multiplier that was read ignore it: this is a fault.
        """
        theory = self.facts.theory
        assert theory is not None
        if not self._may_have_multipliers:
            return 0.0
        start = self._start_excess(name, theory)
        read = theory.exponent(name, lambda row: row.factors.gauge)
        if self.study.in_width and read and abs(start - read) <= BOUNDARY:
            return 0.0
        if row.role == Role.VECTOR or not start:  # biases start with any size
            sibling = f"{name.rpartition('.')[0]}.weight"
            start = self.facts.gauges.get(sibling, 0.0)
        if weight and abs(rate_excess - weight * start) > BOUNDARY:
            return 0.0
        self.facts.gauges[name] = start
        return start

    def _initial_size(
        self, name: str, row: Row, excess: float, gauge: float
    ) -> Iterator[Judgement]:
        theory = self.facts.theory
        assert theory is not None
        fit = self.weights[name]
        predicted = self._predicted_start(name, fit, theory)
        if math.isnan(predicted):
            return
        verdict = Verdict.PASS
        cause = ""
        if excess and not gauge and not self._is_harmless(name, row, excess):
            verdict = Verdict.FAIL
            cause = (
                f"the initial size scales like {self._power(fit.exponent)}, the rule requires"
                f" {self._power(predicted)}"
            )
        yield Judgement(
            name,
            Quantity.WEIGHT,
            0,
            fit.exponent,
            fit.low,
            fit.high,
            predicted,
            verdict,
            cause,
            row.role,
            Reason.SETTING,
        )

    def _is_harmless(self, name: str, row: Row, excess: float) -> bool:
        """Return whether another initial size than that of the rule is as good.

        Readouts may start smaller, down to zero, and so may biases and tables that are added. A
        readout whose output goes on into the network may start with an output of order one. None of
        this holds if steps are relative to the size of the tensor.
        """
        if record_named(row.optimizer).update_law.weight:
            return False
        if row.role == Role.READOUT:
            interior = self.facts.is_interior(name, row.uses)
            return excess < 0 or (interior and excess < 0.5 + BOUNDARY)
        is_random = row.constant is None or self._is_drawn_number(name)
        is_added = is_random and row.role in (Role.VECTOR, Role.FIXED)
        return is_added and excess < 0

    def _penalty(self, name: str, row: Row, theory: Theory, gauge: float) -> Iterator[Judgement]:
        """Judge weight decay that is normalized along with the gradient (Adam)."""
        record = record_named(row.optimizer)
        largest = self.study.observations.largest(name, Quantity.PENALTY)
        if record.decouples_decay or record.update_law.gradient == 1 or largest < NEGLIGIBLE:
            return
        decays = settings_by_size(self.study, "weight_decay").get(name, {})
        if not decays or not all(decays.values()):
            return
        convention = self.study.plans[self.study.sizes[-1]].settings.decay
        predicted = theory.exponent(
            name,
            lambda row: decay_factor(
                row.factors,
                record.law,
                convention,
                coupled=True,
                role=row.role,
                growth=row.growth,
            ),
        )
        required = predicted - 2 * gauge
        exponent = slope(decays)
        verdict = Verdict.PASS
        cause = ""
        if abs(exponent - required) > (BOUNDARY if gauge else EXACT):
            verdict = Verdict.FAIL
            cause = (
                f"weight_decay scales like {self._power(exponent)}; relative to the gradient, with"
                f" which it is normalized, it should scale like {self._power(required)}"
            )
        yield known_line(name, Quantity.PENALTY, exponent, required, verdict, cause, row.role)

    def _decay_of_zeros(self, name: str, row: Row, rate: float) -> Iterator[Judgement]:
        """Judge the decay of tensors that start at zero, where no shrinkage can be measured."""
        record = record_named(row.optimizer)
        shrinks = record.decouples_decay or record.update_law.gradient == 1
        measured = self.study.observations.at(name, Quantity.DECAY, 0)
        decays = settings_by_size(self.study, "weight_decay").get(name, {})
        if measured or not shrinks or not decays or not all(decays.values()):
            return
        exponent = rate + slope(decays)
        verdict = Verdict.PASS
        cause = ""
        theory = self.facts.theory
        if theory is None:
            predicted = 0.0
        else:
            predicted = theory.shrinkage(name)
        if abs(exponent - predicted) > EXACT:
            verdict = Verdict.FAIL
            cause = f"lr times weight_decay scales like {self._power(exponent)}"
        yield known_line(name, Quantity.DECAY, exponent, predicted, verdict, cause, row.role)

    def _eps(self, name: str, row: Row, theory: Theory, gauge: float) -> Iterator[Judgement]:
        """Judge eps where it is not small compared with the gradient, in the largest models."""
        sizes = settings_by_size(self.study, "eps").get(name, {})
        if record_named(row.optimizer).update_law.gradient or not sizes or not all(sizes.values()):
            return
        if name in self.vanishing or not self.study.in_width:
            return
        largest = max(sizes)
        gradient = self._gradient_at(name, largest)
        if not gradient or sizes[largest] < DAMPED * gradient:
            return
        required = theory.exponent(name, _eps_of) - gauge
        exponent = slope(sizes)
        verdict = Verdict.PASS
        cause = ""
        if abs(exponent - required) > (BOUNDARY if gauge else EXACT):
            verdict = Verdict.FAIL
            cause = (
                f"eps scales like {self._power(exponent)} and is {sizes[largest] / gradient:.2g}"
                f" times the gradient, which scales like {self._power(required)}"
            )
        yield known_line(name, Quantity.EPS, exponent, required, verdict, cause, row.role)

    def _gradient_at(self, name: str, size: int) -> float:
        """Return the largest RMS of a gradient over all steps at one size."""
        observations = self.study.observations
        gradients = [0.0]
        for step in range(observations.steps):
            for run, moments in observations.at(name, Quantity.GRADIENT, step).items():
                if run[0] == size:
                    gradients.append(moments.rms)
        return max(gradients)

    def _power(self, exponent: float) -> str:
        return f"{SYMBOLS[self.study.axis]}^{exponent:+z.2f}"

    # --- facts ------------------------------------------------------------------------------------

    @cached_property
    def rates(self) -> dict[str, dict[int, float]]:
        """Learning rates by tensor and size, at the first step where none is zero."""
        return rates_of(self.study)

    @cached_property
    def _may_have_multipliers(self) -> bool:
        """Whether the forward code can have multipliers that were not read."""
        study = self.study
        assert study.family is not None
        if not study.has_user_optimizer:
            return False
        if not study.in_width:
            return True  # multipliers of branches, experts and adapters are not read
        facts = study.family.facts
        if facts.pair is None or any(code_of(f) == "constant-not-read" for f in facts.findings):
            return True
        small = constant_sizes(facts.pair.small)
        for name, size in constant_sizes(facts.pair.large).items():
            before = small.get(name, 0.0)
            if size and before and abs(math.log(size / before)) > math.log(facts.pair.growth) / 8:
                return True
        return False

    def _time_scales(self) -> Iterator[Judgement]:
        """Judge settings that set a time scale: they are the same at every size."""
        names: dict[str, None] = {}
        for run in self.study.observations.runs:
            for settings in run.settings.values():
                for setting in settings:
                    if setting.partition("[")[0] in TIME_SCALES:
                        names[setting] = None
        for setting in names:
            for tensor, values in settings_by_size(self.study, setting).items():
                if len(set(values.values())) > 1:
                    cause = (
                        f"{setting} of {tensor} is {min(values.values()):.6g} to"
                        f" {max(values.values()):.6g}; it must be the same at every"
                        f" {self.study.axis}"
                    )
                    line = known_line(
                        tensor, Quantity.SETTINGS, math.nan, 0.0, Verdict.FAIL, cause, ""
                    )
                    yield line
                    break


def _eps_of(row: Row) -> float | None:
    return row.eps if isinstance(row.eps, float) else None
