"""Expectations for each line of a check, corrected by other measurements of the same runs.

A matrix is judged by what it makes of its input, whatever came before. Attention scores are judged
by the sizes of queries and keys.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from orderone.core.roles import Role
from orderone.measure.judge.expectations import Expectations, Expected
from orderone.measure.judge.verdict import BOUNDARY
from orderone.measure.observations import StudyResult
from orderone.measure.runs import SAME
from orderone.observe.quantities import OF_TENSORS, Quantity
from orderone.optimizers.table import ALGORITHMS
from orderone.planning.counterparts import stack_of

LEVEL = 0.1  # exponents below this belong to something that does not depend on the size
CONFIDENCE = 0.99  # of fits whose interval is not used


@dataclass(frozen=True)
class AdjustedExpectations:
    """Expectations for the lines of one study."""

    study: StudyResult
    _measured: dict[Quantity, dict[str, float]] = field(  # cache of `_exponents`
        default_factory=dict, repr=False, compare=False
    )

    def of(self, name: str, quantity: Quantity, step: int) -> Expected | None:
        """Return the expected exponent, or None where nothing is judged."""
        study = self.study
        is_activation = quantity in (Quantity.OUTPUT, Quantity.CHANGE)
        if study.has_own_optimizer and study.axis == "depth" and is_activation:
            # multipliers may stand behind the branches: everything is of order one at most
            return Expected(allowed=0.0)
        if self.expectations is None:
            if quantity in (*OF_TENSORS, Quantity.OUTPUT_GRADIENT):
                return None
            return Expected(0.0, allowed=0.0)
        if quantity in OF_TENSORS and name not in self.expectations.rows:
            return None
        if quantity == Quantity.SCORE_CHANGE:
            exponent = math.nan if study.axis == "depth" else self._score_growth
            return Expected(exponent, allowed=0.0, role="attention")

        if quantity == Quantity.UPDATE and study.has_own_optimizer:
            expected = self._update_in_unknown_gauge(name)
            if expected is None:
                return None
        else:
            expected = self._with_readout_multiplier(name, quantity)

        if quantity == Quantity.OUTPUT and step == 0 and expected.law:
            return self._given_its_input(name, expected)
        if quantity == Quantity.PENALTY:  # it scales with the gradient that the rule predicts
            return replace(expected, allowed=-self._gradient_deficit(name))
        if expected.rough and quantity != Quantity.GRADIENT:
            return self._given_its_gradient(name, quantity, expected)
        if quantity == Quantity.OUTPUT and step > 0:  # what training adds is bounded, not a law
            change = self._with_readout_multiplier(name, Quantity.CHANGE)
            exponent = _larger(expected.exponent, change.exponent)
            return replace(expected, exponent=exponent, law=False)
        return expected

    @cached_property
    def expectations(self) -> Expectations | None:
        """Expectations of theory; None where there is no plan, no growth or no run."""
        study = self.study
        if study.family is None or study.no_growth or not study.observations.runs:
            return None
        request = study.family.request
        return Expectations(
            parameterization=request.parameterization(request.algorithm.law),
            optimizer_law=request.algorithm.law,
            small=study.plans[study.sizes[0]],
            large=study.plans[study.sizes[-1]],
            ratio=study.sizes[-1] / study.sizes[0],
            same_output=self.same_output,
            grows=self._grows,
            key=study.observations.key,
            in_depth=study.axis == "depth",
        )

    @cached_property
    def same_output(self) -> dict[str, str]:
        """Modules that hand on the output of another module."""
        key = self.study.observations.key
        modules = self.study.observations.runs[0].same_output
        return {key(module): key(maker) for module, maker in modules.items()}

    def _grows(self, module: str) -> bool:
        """Return whether the output has more entries in a larger model; depth adds no entries."""
        if self.study.axis == "depth":
            return True
        sizes = self.study.observations.at(module, Quantity.OUTPUT, 0)
        return len({moments.entries for moments in sizes.values()}) > 1

    # --- corrections ------------------------------------------------------------------------------

    def _given_its_input(self, name: str, expected: Expected) -> Expected:
        """Correct an initial output for the size of what the matrix reads."""
        maker = self.same_output.get(name, name)
        if expected.role == Role.EMBEDDING:
            # it reads what a readout gave, which may shrink; biases may then dominate the output
            fading = min(0.0, self._input(maker))
            return replace(expected, exponent=expected.exponent + fading, law=fading > -BOUNDARY)
        if expected.role not in (Role.HIDDEN, Role.READOUT):
            return expected
        if self.study.has_own_optimizer:
            # the gauge is not known: a multiplier may stand between input and output
            return replace(expected, law=expected.role == Role.READOUT)
        return replace(expected, exponent=expected.exponent + self._input(maker))

    def _with_readout_multiplier(self, name: str, quantity: Quantity) -> Expected:
        """Return the prediction, moved by a multiplier that stands behind a readout.

        The gradient of the readout's output tells on which side the multiplier stands.
        """
        assert self.expectations is not None  # `of` has checked it
        expected = self.expectations.of(name, quantity)
        is_module = quantity not in OF_TENSORS
        if expected.role != Role.READOUT or not is_module or self.study.axis == "depth":
            return expected
        power = self.expectations.forward_multiplier(name)
        measured = self._exponents(Quantity.OUTPUT_GRADIENT).get(name, math.nan)
        if not power or not abs(measured - power) < abs(measured):
            return expected
        if quantity != Quantity.OUTPUT_GRADIENT:
            power = -power
        return replace(
            expected, exponent=expected.exponent + power, allowed=expected.allowed + power
        )

    def _given_its_gradient(self, name: str, quantity: Quantity, expected: Expected) -> Expected:
        """Let steps of SGD follow the gradient.

        Anything between the law and what a small gradient leaves of it is as predicted.
        """
        law = expected.exponent
        measured = self._exponents(quantity).get(name, law)
        return replace(
            expected, exponent=min(max(measured, law + self._gradient_deficit(name)), law)
        )

    def _gradient_deficit(self, name: str) -> float:
        """Return the power (<= 0) by which the gradient stays behind its law.

        A bottleneck lets little through, and so does attention that is still uniform. It counts
        only if the learning rate is as the rule asks. In a gauge that is not known it is a root at
        most: a larger power may be a multiplier.
        """
        assert self.expectations is not None
        law = self.expectations.of(name, Quantity.GRADIENT).exponent
        deficit = self._exponents(Quantity.GRADIENT).get(name, math.nan) - law
        if math.isnan(deficit):
            return 0.0
        if not self.study.has_own_optimizer:
            return min(0.0, deficit)
        if not self.rate_is_right(name):
            return 0.0
        return min(0.0, max(deficit, -0.5))

    def _update_in_unknown_gauge(self, name: str) -> Expected | None:
        """Return the expected update where that can be known, else None.

        A bias has the gauge of the output that it is added to, if the size of that is right. A
        vector that starts at random and of order one (a table of positions) has no multiplier.
        """
        assert self.expectations is not None
        row = self.expectations.rows[name][1]
        starts_at_random = row.role == Role.VECTOR and row.constant is None
        if starts_at_random and abs(self._exponents(Quantity.WEIGHT).get(name, 1.0)) < LEVEL:
            return self.expectations.of(name, Quantity.UPDATE)
        module, _, tensor = name.rpartition(".")
        output = self.expectations.of(module, Quantity.OUTPUT)
        measured = self._exponents(Quantity.OUTPUT).get(module)
        if tensor != "bias" or measured is None or not output.law:
            return None
        if not abs(measured - output.exponent) < BOUNDARY:
            return None
        return self.expectations.of(name, Quantity.UPDATE)

    # --- measurements -----------------------------------------------------------------------------

    def _exponents(self, quantity: Quantity) -> dict[str, float]:
        """Return the exponents measured at initialization, by module or tensor."""
        if quantity not in self._measured:
            fits = self.study.observations.fits([(quantity, 0)], CONFIDENCE)
            self._measured[quantity] = {name: fit.exponent for (name, _, _), fit in fits}
        return self._measured[quantity]

    def _input(self, module: str) -> float:
        """Return the exponent of what a module reads, before a multiplier of the plan."""
        sizes = self.study.sizes
        small = self._input_multiplier(sizes[0], module)
        large = self._input_multiplier(sizes[-1], module)
        multiplier = math.log(large / small) / math.log(sizes[-1] / sizes[0])
        return self._exponents(Quantity.INPUT).get(module, 0.0) - multiplier

    def _input_multiplier(self, size: int, module: str) -> float:
        product = 1.0
        for multiplier in self.study.plans[size].multipliers:
            if multiplier.module == module and multiplier.side == "input":
                product *= multiplier.value
        return product

    @cached_property
    def _score_growth(self) -> float:
        """The power by which scores are predicted to grow.

        Aligned queries and keys give d_H, which the model divides by d_H^power; the sizes of
        queries and keys add theirs (`theory.exponents.Attention`).
        """
        study = self.study
        if study.family is None or not study.family.seen.scores:
            return 0.0
        natural = replace(study.family.request, score_power=None).power
        outputs = self._exponents(Quantity.OUTPUT)
        predicted = []
        for score in study.family.seen.scores:
            head_growth = math.log(score.head_growth) / math.log(study.sizes[-1] / study.sizes[0])
            queries = _mean_exponent(outputs, score.queries)
            keys = _mean_exponent(outputs, score.keys)
            predicted.append(head_growth * (natural + score.power) + (queries + keys))
        return max(0.0, *predicted)

    # --- for causes -------------------------------------------------------------------------------

    def wrong_start(
        self, name: str, quantity: Quantity, exponent: float
    ) -> tuple[float, float] | None:
        """Return the measured and the expected exponent of a tensor's initial size.

        None, unless the update is off only because of that size.
        """
        if self.expectations is None or name not in self.expectations.rows:
            return None
        start = self._exponents(Quantity.WEIGHT).get(name, math.nan)
        expected_start = self.expectations.of(name, Quantity.WEIGHT).exponent
        update = self.expectations.of(name, Quantity.UPDATE).exponent
        if quantity == Quantity.RELATIVE_UPDATE:
            excess = start + exponent - update
        elif ALGORITHMS[self.expectations.rows[name][1].optimizer].update_law.weight:
            # Adafactor's steps are as large as the tensor is
            excess = exponent - update - (start - expected_start)
        else:
            return None
        return (start, expected_start) if abs(excess) < BOUNDARY else None

    def rate_is_right(self, name: str) -> bool:
        """Return whether a tensor's learning rates scale over the sizes as those of the rule do."""
        study = self.study
        rates: dict[int, float] = {}
        for run in study.observations.runs:
            if run.rates and run.rates[0].get(name):
                rates[run.size] = run.rates[0][name]
        factors = []
        for size, rate in rates.items():
            if size not in study.plans:
                continue
            planned = {row.name: row.lr for row in study.plans[size].rows}.get(name)
            if planned:
                factors.append(rate / planned)
        return len(factors) > 1 and max(factors) <= (1 + SAME) * min(factors)


def _mean_exponent(outputs: dict[str, float], tensors: tuple[str, ...]) -> float:
    """Average over the modules that hold these tensors, or the same ones in other layers."""
    stacks = {stack_of(tensor.rpartition(".")[0]) for tensor in tensors}
    exponents = [exponent for name, exponent in outputs.items() if stack_of(name) in stacks]
    return sum(exponents) / len(exponents) if exponents else 0.0


def _larger(first: float, second: float) -> float:
    """Return the larger of the two; NaN if one is unknown."""
    if math.isnan(first) or math.isnan(second):
        return math.nan
    return max(first, second)
