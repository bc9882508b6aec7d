"""Expected exponents of every module and tensor, from theory and from other measurements.

`TheoryExpectations` takes sizes of weights, gradients and updates from the plan, tensor by tensor:
it sets initial sizes and learning rates. Sizes of activations follow from `theory.exponents.rms`,
by the role of the module that computes them, in the network of Stratos, "Scale-Invariant
Parameterizations". A plan may write the same network in another gauge (a
tied readout's multiplier sits in the gain of the norm before it). This moves an activation by a
power that the plan knows, its change by the same power and its gradient by the inverse.

Theory bounds activations and their changes from above, because alignment is at most full. They may
grow no faster than the bound; smaller exponents are reported as SHRINKS. For random sums at
initialization and for updates of weights, theory predicts the exponent itself: deviations on both
sides count.

`AdjustedExpectations` corrects these by other measurements of the same runs. The output of a matrix
is judged relative to its input, and attention scores relative to queries and keys.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from orderone.core.roles import Role
from orderone.measure.judge.verdict import BOUNDARY, UNKNOWN, Expected
from orderone.measure.observations import StudyResult
from orderone.measure.runs import SAME
from orderone.observe.quantities import OF_TENSORS, UPDATES, Quantity
from orderone.optimizers.table import record_named
from orderone.planning.counterparts import stack_of
from orderone.theory.exponents import Parameterization, UpdateLaw, rms

if TYPE_CHECKING:
    from orderone.planning import Plan, Row

DEPTH = 1  # one hidden layer: with more, the growth of each layer would multiply
LAYERS: dict[str, int] = {
    Role.EMBEDDING: 1,
    Role.VECTOR: DEPTH + 1,
    Role.HIDDEN: DEPTH + 1,
    Role.READOUT: DEPTH + 2,
}
LEVEL = 0.1  # smaller exponents mean that a quantity does not depend on the size
CONFIDENCE = 0.99  # any value will do: only the exponents of these fits are used


# --- theory ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TheoryExpectations:
    """Exponents that one rule predicts, from the plans of the smallest and the largest model."""

    parameterization: Parameterization
    optimizer_law: str | UpdateLaw
    small: "Plan"
    large: "Plan"
    ratio: float  # largest size divided by the smallest
    same_output: Mapping[str, str]  # module -> the module whose output it returns
    grows: Callable[[str], bool]  # True if a module's output has more entries in a larger model
    key: Callable[[str], str]  # the common name of a layer in both models
    in_depth: bool = False  # the models differ in depth: the residual stream is of order one

    def expect(self, name: str, quantity: Quantity) -> Expected:
        """Return the expected exponent of a module or tensor."""
        if quantity in OF_TENSORS:
            return self._expect_of_tensor(name, quantity)
        if self.in_depth:
            return self._expect_in_depth(name, quantity)
        return self._expect_of_module(name, quantity)

    # --- tensors ----------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> "Mapping[str, tuple[Row, Row]]":
        """The plans' rows of each tensor, in the small and the large model."""
        small = {self.key(row.name): row for row in self.small.rows}
        return {self.key(row.name): (small[self.key(row.name)], row) for row in self.large.rows}

    def _exponent(self, name: str, value: "Callable[[Row], float | None]") -> float:
        """Return the exponent of a value that the plans set for a tensor."""
        small, large = self.rows[name]
        return self._power(value(small), value(large))

    def _power(self, small: float | None, large: float | None) -> float:
        if small and large:
            return math.log(large / small) / math.log(self.ratio)
        return UNKNOWN

    def _expect_of_tensor(self, name: str, quantity: Quantity) -> Expected:
        row = self.rows[name][1]
        if quantity == Quantity.PENALTY:
            # penalty and gradient are normalized together: the penalty must not dominate
            return Expected(bound=0.0, role=row.role)
        if quantity == Quantity.WEIGHT:
            exponent = self._weight(name)
        elif quantity == Quantity.GRADIENT:
            exponent = self._gradient(name)
        elif quantity == Quantity.DECAY:
            exponent = 0.0  # a step shrinks a weight by the same fraction at every size
        elif quantity == Quantity.UPDATE:
            exponent = self._update(name)
        else:
            exponent = self._relative_update(name)
        is_gradient = quantity == Quantity.GRADIENT
        update_law = record_named(row.optimizer).update_law
        follows_gradient = update_law.gradient > 0 and quantity in UPDATES
        return Expected(
            exponent,
            two_sided=True,
            role=row.role,
            rough=is_gradient or follows_gradient,
        )

    def _weight(self, name: str) -> float:
        row = self.rows[name][1]
        if row.role == Role.FIXED and row.constant is None:
            return UNKNOWN  # the model's code initializes it
        return self._exponent(name, _initial_size)

    def _gradient(self, name: str) -> float:
        if self.rows[name][1].role == Role.FIXED:
            return UNKNOWN
        return self._exponent(name, lambda row: row.rms(lambda part: part.factors.gradient))

    def _update(self, name: str) -> float:
        """Return the exponent of one step of the tensor's optimizer (Eq. 12 of Stratos)."""
        rate = self._exponent(name, lambda row: row.rms(lambda part: part.lr))
        update_law = record_named(self.rows[name][1].optimizer).update_law
        if update_law.spectral:  # the size of entries depends on the rank of the gradient
            return UNKNOWN
        if update_law.gradient:
            rate += update_law.gradient * self._gradient(name)
        if update_law.weight:
            rate += update_law.weight * self._exponent(name, _initial_size)
        return rate

    def _relative_update(self, name: str) -> float:
        row = self.rows[name][1]
        if row.role in (Role.VECTOR, Role.FIXED) and row.constant is None:
            return UNKNOWN  # initial biases are arbitrary: torch's shrink with the width
        return self._update(name) - self._exponent(name, _initial_size)

    # --- modules ----------------------------------------------------------------------------------

    @cached_property
    def _weights(self) -> dict[str, str]:
        """The tensor that computes a module's output, by module.

        A module whose children have tensors too is left out: torch's attention has a matrix for
        queries, keys and values, and its child applies another matrix to the result.
        """
        containers = set()
        for row in self.large.rows:
            for module in row.uses:
                containers.update(_parents(module))

        weights: dict[str, str] = {}
        for row in self.large.rows:
            if not row.name.endswith("weight"):
                continue
            for module in row.uses:
                if module not in containers:
                    weights.setdefault(self.key(module), self.key(row.name))
        return weights

    def _maker(self, module: str) -> str:
        """Return the module that computes this module's output."""
        if module in self._weights:
            return module
        return self.same_output.get(module, module)

    @cached_property
    def _sizes(self) -> dict[str, float]:
        """Exponents at initialization, and of the changes (Δ) in training."""
        sizes = rms(self.parameterization, DEPTH)
        # most rules derive their rates with full alignment; here the readout's weights may also be
        # aligned with the changes of its input, as training makes them: growth is then predicted
        after_a_step = rms(
            self.parameterization,
            DEPTH,
            training=True,
            optimizer=self.optimizer_law,
            alignment="worst",
        )
        for name, exponent in after_a_step.items():
            if name.startswith("Δ"):
                sizes[name] = exponent
        return {name: float(exponent) for name, exponent in sizes.items()}

    def _expect_in_depth(self, module: str, quantity: Quantity) -> Expected:
        """Return the expected exponent for models of different depth.

        The output of a branch has the power of the multiplier that was folded into its last tensor.
        Changes have an upper bound only.
        """
        if quantity == Quantity.OUTPUT_GRADIENT:
            return Expected()
        weight = self._weights.get(self._maker(module))
        implied = UNKNOWN
        role = ""
        if weight:
            implied = self._exponent(weight, lambda row: row.initial_growth)
            role = self.rows[weight][1].group
        known = not math.isnan(implied)
        bound = 0.0
        if known:
            bound = implied
        if quantity == Quantity.CHANGE:
            return Expected(bound=bound, role=role)
        return Expected(implied, bound=bound, two_sided=known, role=role)

    def _expect_of_module(self, module: str, quantity: Quantity) -> Expected:
        maker = self._maker(module)
        weight = self._weights.get(maker)
        role = ""
        implied = UNKNOWN
        if weight:
            role = self._role(weight, module)
            implied = self._output(weight, maker)
        if not role and not self.grows(module) and quantity != Quantity.OUTPUT_GRADIENT:
            # no tensor computes this output and its size is fixed (a reshaped logit, a loss, a
            # mask): it may not grow
            return Expected(UNKNOWN, bound=0.0)

        layer = self._layer(role, module)
        known = not math.isnan(implied)
        gauge_shift = 0.0
        gauge_of = ""
        exponent = self._sizes[f"h{layer}"]
        if known:
            gauge_shift = implied - self._sizes[f"h{layer}"]
            exponent = implied
        if abs(gauge_shift) > 1e-6:
            gauge_of = weight or ""

        if quantity == Quantity.OUTPUT_GRADIENT:
            return Expected(self._sizes[f"h'{layer}"] - gauge_shift, two_sided=True, role=role)
        if quantity == Quantity.CHANGE:
            change = self._sizes[f"Δh{layer}"]
            if role == Role.VECTOR:  # a normalized output cannot change by more than its size
                change = min(change, 0.0)
            return Expected(change + gauge_shift, bound=gauge_shift, role=role, gauge_of=gauge_of)
        return Expected(exponent, bound=gauge_shift, two_sided=known, role=role, gauge_of=gauge_of)

    def _layer(self, role: str, module: str) -> int:
        """Return the layer of Stratos's network that a module with this role corresponds to."""
        if role in LAYERS:
            return LAYERS[role]
        if self.grows(module):
            return LAYERS[Role.HIDDEN]
        return LAYERS[Role.READOUT]

    def forward_multiplier(self, module: str) -> float:
        """Return the power of the multiplier in the forward code, before or after a readout."""
        weight = self._weights.get(self._maker(module))
        if not weight:
            return 0.0
        power = self._exponent(weight, lambda row: row.factors.gauge)
        if math.isnan(power):
            return 0.0
        return power

    def _role(self, weight: str, module: str) -> str:
        """Return the role that the tensor has in this module.

        A tensor of several modules is tied: it is a readout where the output does not grow. So is a
        tensor whose role was overridden as fixed.
        """
        row = self.rows[weight][1]
        is_table = row.role == Role.EMBEDDING and len(row.uses) == 1
        if not self.grows(module) and not is_table and row.role != Role.VECTOR:
            return Role.READOUT
        return row.role

    def _output(self, weight: str, module: str) -> float:
        """Return the exponent of a module's initial output, as its weight implies it."""
        small_weight, large_weight = self.rows[weight]
        small_bias, large_bias = self.rows.get(f"{module}.bias", (None, None))
        small = small_weight.output_growth(small_bias)
        large = large_weight.output_growth(large_bias)
        if small_weight.shape == small_weight.base_shape:
            small = 1.0  # at base size nothing grows, and roles are unknown
        return self._power(small, large)


def _initial_size(row: "Row") -> float:
    return row.rms(lambda part: part.init_std)


def _parents(module: str) -> Iterator[str]:
    """Yield the modules that contain this one."""
    while module:
        module = module.rpartition(".")[0]
        yield module


# --- adjusted by measurements ---------------------------------------------------------------------


@dataclass(frozen=True)
class AdjustedExpectations:
    """Expectations for the lines of one study."""

    study: StudyResult
    _measured: dict[Quantity, dict[str, float]] = field(  # cache of `measured_exponents`
        default_factory=dict, repr=False, compare=False
    )

    def expect(self, name: str, quantity: Quantity, step: int) -> Expected | None:
        """Return the expected exponent, or None where there is nothing to judge."""
        study = self.study
        is_activation = quantity in (Quantity.OUTPUT, Quantity.CHANGE)
        if study.has_user_optimizer and study.axis == "depth" and is_activation:
            # there may be multipliers after the branches: everything is of order one at most
            return Expected(bound=0.0)
        if self.theory is None:
            if quantity in (*OF_TENSORS, Quantity.OUTPUT_GRADIENT):
                return None
            return Expected(0.0, bound=0.0)
        if quantity in OF_TENSORS and name not in self.theory.rows:
            return None
        if quantity == Quantity.SCORE_CHANGE:
            if study.axis == "depth":
                return Expected(bound=0.0, role="attention")
            return Expected(self._score_growth, bound=0.0, role="attention")

        if quantity == Quantity.UPDATE and study.has_user_optimizer:
            expected = self._update_in_unknown_gauge(name)
            if expected is None:
                return None
        else:
            expected = self._predicted(name, quantity)

        if quantity == Quantity.OUTPUT and step == 0 and expected.two_sided:
            return self._relative_to_input(name, expected)
        if quantity == Quantity.PENALTY:  # relative to the gradient, which may be too small
            return replace(expected, bound=-self._gradient_deficit(name))
        if expected.rough and quantity != Quantity.GRADIENT:
            return self._relative_to_gradient(name, quantity, expected)
        if quantity == Quantity.OUTPUT and step > 0:  # the change has only an upper bound
            change = self._predicted(name, Quantity.CHANGE)
            exponent = _larger(expected.exponent, change.exponent)
            return replace(expected, exponent=exponent, two_sided=False)
        return expected

    @cached_property
    def theory(self) -> TheoryExpectations | None:
        """Expectations of theory; None where there is no plan, no growth or no run."""
        study = self.study
        if study.family is None or study.no_growth or not study.observations.runs:
            return None
        request = study.family.request
        return TheoryExpectations(
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
        """Modules whose output is that of another module."""
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

    def _relative_to_input(self, name: str, expected: Expected) -> Expected:
        """Correct an initial output for the size of the matrix's input."""
        maker = self.same_output.get(name, name)
        if expected.role == Role.EMBEDDING:
            # its input may be the shrinking output of a readout; biases may then dominate
            fading = min(0.0, self._input(maker))
            return replace(
                expected,
                exponent=expected.exponent + fading,
                two_sided=fading > -BOUNDARY,
            )
        if expected.role not in (Role.HIDDEN, Role.READOUT):
            return expected
        if self.study.has_user_optimizer:
            # the gauge is not known: there may be a multiplier between input and output
            return replace(expected, two_sided=expected.role == Role.READOUT)
        return replace(expected, exponent=expected.exponent + self._input(maker))

    def _predicted(self, name: str, quantity: Quantity) -> Expected:
        """Return the prediction of theory; for outputs of a readout, with its multiplier.

        The gradient of the readout's output shows whether the multiplier comes before or after it.
        """
        assert self.theory is not None  # `expect` has checked it
        expected = self.theory.expect(name, quantity)
        is_module = quantity not in OF_TENSORS
        if expected.role != Role.READOUT or not is_module or self.study.axis == "depth":
            return expected
        power = self.theory.forward_multiplier(name)
        measured = self.measured_exponents(Quantity.OUTPUT_GRADIENT).get(name, math.nan)
        if not power or not abs(measured - power) < abs(measured):
            return expected
        if quantity != Quantity.OUTPUT_GRADIENT:
            power = -power
        return replace(expected, exponent=expected.exponent + power, bound=expected.bound + power)

    def _relative_to_gradient(self, name: str, quantity: Quantity, expected: Expected) -> Expected:
        """Correct updates of SGD for small gradients.

        Any exponent between the predicted one and that of the small gradient counts as predicted.
        """
        predicted = expected.exponent
        least = predicted + self._gradient_deficit(name)
        measured = self.measured_exponents(quantity).get(name, predicted)
        return replace(expected, exponent=min(max(measured, least), predicted))

    def _gradient_deficit(self, name: str) -> float:
        """Return the power (<= 0) by which the gradient is smaller than predicted.

        Bottlenecks and attention that is still uniform make gradients small. This counts only if
        the learning rate scales as the rule requires. With the user's own optimizer, at most n^-1/2
        is accepted as a small gradient; more could be a multiplier in the code.
        """
        assert self.theory is not None
        predicted = self.theory.expect(name, Quantity.GRADIENT).exponent
        deficit = self.measured_exponents(Quantity.GRADIENT).get(name, math.nan) - predicted
        if math.isnan(deficit):
            return 0.0
        if not self.study.has_user_optimizer:
            return min(0.0, deficit)
        if not self.rate_is_right(name):
            return 0.0
        return min(0.0, max(deficit, -0.5))

    def _update_in_unknown_gauge(self, name: str) -> Expected | None:
        """Return the expected update if the gauge can be inferred, else None.

        A bias has the gauge of the output that it is added to, if that output has the right size. A
        vector that starts random and of order one (a table of positions) has no multiplier.
        """
        assert self.theory is not None
        row = self.theory.rows[name][1]
        starts_at_random = row.role == Role.VECTOR and row.constant is None
        if (
            starts_at_random
            and abs(self.measured_exponents(Quantity.WEIGHT).get(name, 1.0)) < LEVEL
        ):
            return self.theory.expect(name, Quantity.UPDATE)
        module, _, tensor = name.rpartition(".")
        output = self.theory.expect(module, Quantity.OUTPUT)
        measured = self.measured_exponents(Quantity.OUTPUT).get(module)
        if tensor != "bias" or measured is None or not output.two_sided:
            return None
        if not abs(measured - output.exponent) < BOUNDARY:
            return None
        return self.theory.expect(name, Quantity.UPDATE)

    # --- measurements -----------------------------------------------------------------------------

    def measured_exponents(self, quantity: Quantity) -> dict[str, float]:
        """Return the exponents measured at initialization, by module or tensor."""
        if quantity not in self._measured:
            fits = self.study.observations.fits([(quantity, 0)], CONFIDENCE)
            self._measured[quantity] = {name: fit.exponent for (name, _, _), fit in fits}
        return self._measured[quantity]

    def _input(self, module: str) -> float:
        """Return the exponent of a module's input, before a multiplier of the plan."""
        sizes = self.study.sizes
        small = self._input_multiplier(sizes[0], module)
        large = self._input_multiplier(sizes[-1], module)
        multiplier = math.log(large / small) / math.log(sizes[-1] / sizes[0])
        return self.measured_exponents(Quantity.INPUT).get(module, 0.0) - multiplier

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
        if study.family is None or not study.family.facts.scores:
            return 0.0
        natural = replace(study.family.request, score_power=None).power
        outputs = self.measured_exponents(Quantity.OUTPUT)
        predicted = []
        for score in study.family.facts.scores:
            head_growth = math.log(score.head_growth) / math.log(study.sizes[-1] / study.sizes[0])
            queries = _mean_exponent(outputs, score.queries)
            keys = _mean_exponent(outputs, score.keys)
            if score.packed is not None:
                queries = self._planned_queries(score.queries)
                keys = 0.0
            predicted.append(head_growth * (natural + score.power) + (queries + keys))
        return max(0.0, *predicted)

    def _planned_queries(self, names: tuple[str, ...]) -> float:
        """Return the exponent of queries whose rows of a packed tensor have a factor."""
        study = self.study
        if study.has_user_optimizer:
            return 0.0
        stacks = {stack_of(name) for name in names}
        for row in study.plans[study.sizes[-1]].rows:
            for block in row.blocks:
                if stack_of(row.name) in stacks and block.kind == "queries":
                    factor = block.factors.std / row.factors.std
                    return math.log(factor) / math.log(study.sizes[-1] / study.sizes[0])
        return 0.0

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
    if not exponents:
        return 0.0
    return sum(exponents) / len(exponents)


def _larger(first: float, second: float) -> float:
    """Return the larger of the two; NaN if one is unknown."""
    if math.isnan(first) or math.isnan(second):
        return math.nan
    return max(first, second)
