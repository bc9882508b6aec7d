"""Expected exponents of every module and tensor, from theory and from other measurements.

`Theory` takes sizes of weights, gradients and updates from the plan, tensor by tensor:
it sets initial sizes and learning rates. Sizes of activations follow from `theory.exponents.rms`,
by the role of the module that computes them, in the network of Stratos, "Scale-Invariant
Parameterizations". A plan may write the same network in another gauge (a
tied readout's multiplier sits in the gain of the norm before it). This moves an activation by a
power that the plan knows, its change by the same power and its gradient by the inverse.

Theory bounds activations and their changes from above, because alignment is at most full. They may
grow no faster than the bound; smaller exponents are reported as SHRINKS. For random sums at
initialization and for updates of weights, theory predicts the exponent itself: deviations on both
sides count.

`Expectations` corrects these by other measurements of the same runs, one method for each row of the
table in `quantities`. The output of a matrix is judged relative to its input, and attention scores
relative to queries and keys.

Missing alignment makes a change smaller than its bound, by at most half a power: a sum of n terms
is at least n^1/2 times one of them. It is measured, layer by layer. So changes, inputs of matrices,
scores and gradients also have a lower end. Readouts inside the network lower it: they start with
n^-1/2, and so does what follows from them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from orderone.core.roles import MATRIX_ROLES, Role
from orderone.measure.fit import Fit, fit_exponents
from orderone.measure.judge.thresholds import BOUNDARY, LEAST_GROWTH, MISSING_ALIGNMENT
from orderone.measure.judge.verdict import UNKNOWN, Expected
from orderone.measure.observations import RunKey, StudyResult
from orderone.measure.runs import EXPERT_COUNT
from orderone.observe.quantities import OF_TENSORS, Quantity
from orderone.optimizers.table import record_named
from orderone.planning.counterparts import stack_of
from orderone.rules.axes import shrinkage
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
FEWEST = 3  # tensors with a common excess
ATTENTION = "attention"  # role of the lines about scores
CONFIDENCE = 0.99  # any value will do: only the exponents of these fits are used


# --- theory ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theory:
    """Exponents that one rule predicts, from the plans of the smallest and the largest model."""

    parameterization: Parameterization
    optimizer_law: str | UpdateLaw
    small: "Plan"
    large: "Plan"
    ratio: float  # largest size divided by the smallest
    same_output: Mapping[str, str]  # module -> the module whose output it returns
    grows: Callable[[str], bool]  # True if a module's output has more entries in a larger model
    order: tuple[str, ...]  # modules, as their calls end
    key: Callable[[str], str]  # the common name of a layer in both models
    code_power: Callable[[str], float]  # power of the size that multiplies a product in the code
    in_width: bool = True  # otherwise the residual stream is of order one
    tokens_growth: float = 0.0  # exponent of the tokens that one expert sees in a step
    # the model is scaled already: how its initial sizes depend on the depth is not known
    any_depth: bool = False
    nonlinear: frozenset[str] = frozenset()  # layers whose output is no product with their tensors

    def expect(self, name: str, quantity: Quantity) -> Expected:
        """Return the expected exponent of a module or tensor."""
        if quantity in OF_TENSORS:
            return self._expect_of_tensor(name, quantity)
        if not self.in_width:
            return self._expect_of_order_one(name, quantity)
        return self._expect_of_module(name, quantity)

    # --- tensors ----------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> "Mapping[str, tuple[Row, Row]]":
        """The plans' rows of each tensor, in the small and the large model."""
        small = {self.key(row.name): row for row in self.small.rows}
        return {self.key(row.name): (small[self.key(row.name)], row) for row in self.large.rows}

    def exponent(self, name: str, value: "Callable[[Row], float | None]") -> float:
        """Return the exponent of a value that the plans set for a tensor."""
        small, large = self.rows[name]
        return self._power(value(small), value(large))

    def _power(self, small: float | None, large: float | None) -> float:
        if small and large:
            return math.log(large / small) / math.log(self.ratio)
        return UNKNOWN

    def _expect_of_tensor(self, name: str, quantity: Quantity) -> Expected:
        row = self.rows[name][1]
        if quantity == Quantity.WEIGHT:
            exponent = self._weight(name)
        elif quantity == Quantity.GRADIENT:
            exponent = self._gradient(name)
        else:
            exponent = self.shrinkage(name)
        is_gradient = quantity == Quantity.GRADIENT
        return Expected(
            exponent, two_sided=True, role=row.role, rough=is_gradient, soft=is_gradient
        )

    def shrinkage(self, name: str) -> float:
        """Return the exponent of the fraction by which a step shrinks a tensor.

        It is 0, except for conventions of weight decay that follow the width.
        """
        convention = self.large.settings.decay
        return self.exponent(name, lambda row: shrinkage(convention, row.role, row.growth))

    def _weight(self, name: str) -> float:
        row = self.rows[name][1]
        if row.role == Role.FIXED and row.constant is None and self.in_width:
            return UNKNOWN  # the model's code initializes it
        if self.any_depth:
            return self.exponent(name, lambda row: _initial_size(row) / row.own_depth)
        return self.exponent(name, _initial_size)

    def _gradient(self, name: str) -> float:
        if self.rows[name][1].role == Role.FIXED:
            return UNKNOWN
        return self.exponent(name, lambda row: row.rms(lambda part: part.factors.gradient))

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
                if module not in containers and self.key(module) not in self.nonlinear:
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

    def _expect_of_order_one(self, module: str, quantity: Quantity) -> Expected:
        """Return the expected exponent for models that differ in depth, experts or rank.

        The output of a branch has the power of the multiplier that was folded into its last tensor,
        and so has the output of the last matrix of an expert or adapter. Changes have an upper
        bound only. Experts that see fewer tokens align better with each of them.
        """
        if quantity == Quantity.OUTPUT_GRADIENT:
            return Expected()
        weight = self._weights.get(self._maker(module))
        implied = UNKNOWN
        role = ""
        bound = 0.0
        if weight:
            small, large = self.rows[weight]
            role = large.group
            implied = self.exponent(weight, lambda row: row.initial_growth)
            if not math.isnan(implied):
                bound = implied
            if large.role != Role.FIXED:  # a matrix of an adapter: its fan-in may grow
                implied = self._power(small.output_growth(None) or 1.0, large.output_growth(None))
                bound = -self.exponent(weight, lambda row: row.factors.gauge)
        else:
            bound = self._fused_bound(module)
        bound -= min(self.tokens_growth, 0.0) / 2
        if quantity == Quantity.CHANGE:
            return Expected(bound=bound, role=role)
        return Expected(implied, bound=bound, two_sided=not math.isnan(implied), role=role)

    def _fused_bound(self, module: str) -> float:
        """Return the bound of a module that holds all experts in tensors of its own.

        It may return the outputs of experts before their weights multiply them.
        """
        bound = 0.0
        for name, (_, row) in self.rows.items():
            if row.role == Role.FIXED and module in map(self.key, row.uses):
                bound = max(bound, -self.exponent(name, lambda row: row.factors.gauge))
        return bound

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
        fan_in = self._fan_in_power(weight, role)
        known = not math.isnan(implied)
        gauge_shift = 0.0
        gauge_of = ""
        exponent = fan_in * self._sizes[f"h{layer}"]
        if known:
            gauge_shift = implied - exponent
            exponent = implied
        if abs(gauge_shift) > 1e-6:
            gauge_of = weight or ""

        if quantity == Quantity.OUTPUT_GRADIENT:
            gradient = self._sizes[f"h'{layer}"] - gauge_shift
            return Expected(bound=gradient, role=role, soft=True)
        if quantity == Quantity.CHANGE:
            change = fan_in * self._sizes[f"Δh{layer}"]
            if role == Role.VECTOR:  # a normalized output cannot change by more than its size
                change = min(change, 0.0)
            return Expected(change + gauge_shift, bound=gauge_shift, role=role, gauge_of=gauge_of)
        return Expected(exponent, bound=gauge_shift, two_sided=known, role=role, gauge_of=gauge_of)

    def _fan_in_power(self, weight: str | None, role: str) -> float:
        """Return the power of the size by which the fan-in of a matrix grows.

        It is 2 for a matrix that reads all products of two layers.
        """
        if not weight or role not in (Role.HIDDEN, Role.READOUT):
            return 1.0
        power = self.exponent(weight, lambda row: float(row.growth.fan_in))
        return power or 1.0  # 0: a tied readout, which has the growth of its table

    def _layer(self, role: str, module: str) -> int:
        """Return the layer of Stratos's network that a module with this role corresponds to."""
        if role in LAYERS:
            return LAYERS[role]
        if not self.grows(module):
            return LAYERS[Role.READOUT]
        if self._preceding_role(module) == Role.EMBEDDING:
            return LAYERS[Role.EMBEDDING]
        return LAYERS[Role.HIDDEN]

    def _preceding_role(self, module: str) -> str:
        """Return the role of the last matrix before the end of a module's call."""
        if module not in self.order:
            return ""
        for earlier in reversed(self.order[: self.order.index(module)]):
            if earlier in self._weights:
                role = self._role(self._weights[earlier], earlier)
                if role != Role.VECTOR:
                    return role
        return ""

    def weight_of(self, module: str) -> str:
        """Return the tensor that computes a module's output; empty if there is none."""
        return self._weights.get(self._maker(module), "")

    def modules(self) -> Iterator[tuple[str, str, str]]:
        """Yield each module that applies a tensor, with the tensor and its role there."""
        for module, weight in self._weights.items():
            yield module, weight, self._role(weight, module)

    def gauge_power(self, weight: str) -> float:
        """Return the absolute power of all multipliers of a tensor: in the code, or for a tie."""
        power = 0.0
        for value in (lambda row: row.factors.gauge, lambda row: row.multiplier):
            exponent = self.exponent(weight, value)
            if not math.isnan(exponent):
                power += abs(exponent)
        return power + abs(self._tied_power(weight))

    def depth_power(self, weight: str) -> float:
        """Return the power of the size by which the number of layers like this one grows."""
        power = self.exponent(weight, lambda row: row.depth)
        return 0.0 if math.isnan(power) else max(0.0, power)

    def _tied_power(self, weight: str) -> float:
        """Return the power of the multiplier in the code of a tied readout."""
        if len(self.rows[weight][1].uses) > 1:
            return self.code_power(weight)
        return 0.0

    def forward_multiplier(self, module: str) -> float:
        """Return the power of the multiplier in the forward code, before or after a readout."""
        weight = self._weights.get(self._maker(module))
        if not weight:
            return 0.0
        power = self.exponent(weight, lambda row: row.factors.gauge)
        if math.isnan(power):
            power = 0.0
        return power or self._tied_power(weight)

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
        if self.any_depth and small and large:
            small /= small_weight.own_depth
            large /= large_weight.own_depth
        return self._power(small, large)


def _initial_size(row: "Row") -> float:
    return row.rms(lambda part: part.init_std)


def _parents(module: str) -> Iterator[str]:
    """Yield the modules that contain this one."""
    while module:
        module = module.rpartition(".")[0]
        yield module


# --- corrected by measurements --------------------------------------------------------------------


@dataclass(frozen=True)
class Expectations:
    """Expectations for the lines of one study, one method for each row of `quantities`."""

    study: StudyResult
    # power t of a multiplier n^-t that was not read from the forward code, by tensor
    gauges: dict[str, float] = field(default_factory=dict, compare=False)
    _fits: dict[tuple[Quantity, int], dict[str, Fit]] = field(  # cache of `fits`
        default_factory=dict, repr=False, compare=False
    )

    # --- modules ----------------------------------------------------------------------------------

    def output_at_start(self, name: str, step: int) -> Expected | None:
        """Expect a random sum: the initial sizes of the tensor and of its input."""
        expected = self._of_activation(name, Quantity.OUTPUT)
        if self.theory is None or not expected.two_sided:
            return expected
        return self._relative_to_input(name, expected)

    def output_later(self, name: str, step: int) -> Expected | None:
        """Expect at most the larger one of the initial output and of its change."""
        expected = self._of_activation(name, Quantity.OUTPUT)
        if self.theory is None:
            return expected
        change = self._of_activation(name, Quantity.CHANGE)
        exponent = _larger(expected.exponent, change.exponent)
        return replace(expected, exponent=exponent, two_sided=False)

    def change(self, name: str, step: int) -> Expected | None:
        """Expect at most full alignment, and at least the measured one."""
        expected = self._of_activation(name, Quantity.CHANGE)
        if self.theory is None or not self._has_lower_ends or step < self.study.observations.steps:
            return expected
        weight = self.theory.weight_of(name)
        if name and not weight:
            return expected
        largest = min(_or_zero(expected.exponent), expected.bound) - self._multiplied(weight)
        least = largest - self.missing_alignment(name) - self._fading - self._small_gradients
        return replace(expected, least=least)

    def _multiplied(self, weight: str) -> float:
        """Return the absolute power of all multipliers of a tensor, read or not.

        Where layers are added along with the width, a branch may be divided by their number.
        """
        if not weight:
            return 0.0
        assert self.theory is not None
        power = self.theory.gauge_power(weight) + abs(self.gauges.get(weight, 0.0))
        return power + self.theory.depth_power(weight)

    def input_at_start(self, name: str, step: int) -> Expected | None:
        """Expect inputs of order one: otherwise the layer learns less in large models."""
        if self.theory is None or not self._has_lower_ends:
            return None
        weight = self.theory.weight_of(name)
        if not weight or self.theory.same_output.get(name):
            return None
        role = self.theory.expect(name, Quantity.CHANGE).role
        if role not in (Role.HIDDEN, Role.READOUT):
            return None
        least = -self._fading - self._multiplied(weight)
        last = self.fits(Quantity.INPUT, self.study.observations.steps).get(name)
        if last is not None and not last.exponent < least - BOUNDARY:
            least = -math.inf  # training makes it of order one
        return Expected(0.0, least=least, role=role)

    def output_gradient(self, name: str, step: int) -> Expected | None:
        """Expect the gradient of the rule, and half a power less without alignment."""
        if self.theory is None or not self.study.in_width:
            return None
        expected = self._of_activation(name, Quantity.OUTPUT_GRADIENT)
        if name == "" and self.follows_gradients and not self.grows(name):
            return replace(expected, exponent=expected.bound, two_sided=True, soft=False)
        weight = self.theory.weight_of(name)
        if not self._has_lower_ends or not weight:
            return expected
        least = expected.bound - MISSING_ALIGNMENT - self._fading - self._multiplied(weight)
        last = self.fits(Quantity.OUTPUT_GRADIENT, self.study.observations.steps - 1).get(name)
        if last is not None and not last.exponent < least - BOUNDARY:
            return expected
        return replace(expected, least=least)

    def scores(self, name: str, step: int) -> Expected | None:
        """Expect scores of order one, or those of random queries and keys in growing heads."""
        study = self.study
        if self.theory is None or not study.in_width or study.family is None:
            return None
        entries = {m.entries for m in study.observations.at(name, Quantity.SCORES, 0).values()}
        growth = self._head_growth
        if not growth and (len(entries) == 1 or study.family.facts.pair is None):
            return None  # another softmax than that of attention, or unknown heads
        if growth:
            return Expected(-growth / 2, least=-growth / 2 - self._fading, role=ATTENTION)
        if self._fading:
            return Expected(0.0, least=-self._fading, role=ATTENTION)
        return Expected(0.0, two_sided=True, role=ATTENTION)

    def score_change(self, name: str, step: int) -> Expected | None:
        """Expect at most aligned queries and keys."""
        if self.theory is None or not self.study.in_width:
            return Expected(0.0 if self.theory is None else UNKNOWN, bound=0.0, role=ATTENTION)
        expected = Expected(self._score_growth, bound=0.0, role=ATTENTION)
        if not self._has_lower_ends or step < self.study.observations.steps:
            return expected
        least = -MISSING_ALIGNMENT - self._head_growth / 2 - self._fading - self._small_gradients
        return replace(expected, least=least)

    # --- tensors ----------------------------------------------------------------------------------

    def weight(self, name: str, step: int) -> Expected | None:
        """Expect the initial size in the plan. `settings` judges models of unknown gauge."""
        if self.theory is None or self.study.has_user_optimizer or name not in self.theory.rows:
            return None
        return self.theory.expect(name, Quantity.WEIGHT)

    def gradient(self, name: str, step: int) -> Expected | None:
        """Expect the gradient of the rule; this is a witness only."""
        if self.theory is None or name not in self.theory.rows:
            return None
        return self.theory.expect(name, Quantity.GRADIENT)

    def decay(self, name: str, step: int) -> Expected | None:
        """Expect that a step shrinks a weight by the same fraction at every size."""
        if self.theory is None or name not in self.theory.rows:
            return None
        return self.theory.expect(name, Quantity.DECAY)

    def update(self, name: str, step: int) -> Expected | None:
        """Expect what the learning rate, the gradient and the weights imply.

        Whether the learning rate itself is right is judged in `settings`.
        """
        if self.theory is None or name not in self.theory.rows:
            return None
        row = self.theory.rows[name][1]
        law = record_named(row.optimizer).update_law
        if law.spectral:
            return None  # the size of entries depends on the rank of the gradient
        starts = self.study.observations.at(name, Quantity.WEIGHT, 0).values()
        if law.weight and any(moments.rms == 0 for moments in starts):
            return None  # steps that are relative to zero depend on eps, and then on earlier steps
        implied = self._implied_updates(name, step, row)
        if len(implied) < 3 or min(implied.values()) <= 0:
            return None
        (fit,) = fit_exponents(
            [size for size, _ in implied], [list(implied.values())], confidence=CONFIDENCE
        )
        return Expected(fit.exponent, two_sided=True, role=row.role)

    def _implied_updates(self, name: str, step: int, row: "Row") -> dict[RunKey, float]:
        """Return the size of an update in each run: lr |g|^gradient |W|^weight, and decay."""
        observations = self.study.observations
        law = record_named(row.optimizer).update_law
        gradients = observations.at(name, Quantity.GRADIENT, step)
        # steps hardly change weights, which are not recorded at later steps
        weights = observations.at(name, Quantity.WEIGHT, step) or observations.at(
            name, Quantity.WEIGHT, 0
        )
        in_rows = row.rms(lambda part: part.lr) / row.lr if row.lr and row.row_settings else 1.0
        sizes: dict[RunKey, float] = {}
        for run in observations.complete:
            key = (run.size, run.seed)
            if step >= len(run.rates) or key not in gradients or key not in weights:
                continue
            rates = [rate for raw, rate in run.rates[step].items() if observations.key(raw) == name]
            if not rates:
                continue
            rate = math.sqrt(sum(rate * rate for rate in rates) / len(rates))
            weight = weights[key].rms
            size = in_rows * gradients[key].rms ** float(law.gradient)
            settings = {}
            for raw, numbers in run.settings.items():
                if observations.key(raw) == name:
                    settings = numbers
            size *= weight ** float(law.weight)
            sizes[key] = rate * math.hypot(size, settings.get("weight_decay", 0.0) * weight)
        return sizes

    def clipped_gradients(self) -> float:
        """Return the common excess of gradients over output gradient times input.

        It is 0 where the size of updates does not depend on that of gradients.
        """
        if self.theory is None or not self.follows_gradients:
            return 0.0
        gradients = self.measured_exponents(Quantity.GRADIENT)
        arriving = self.measured_exponents(Quantity.OUTPUT_GRADIENT)
        inputs = self.measured_exponents(Quantity.INPUT)
        excess = []
        for module, weight, role in self.theory.modules():
            known = weight in gradients and module in arriving and module in inputs
            if known and role in MATRIX_ROLES and len(self.theory.rows[weight][1].uses) == 1:
                excess.append(gradients[weight] - arriving[module] - inputs[module])
        return common_part(excess)

    def excess_of_gradients(self, vanishing: frozenset[str]) -> float:
        """Return the common excess of the gradients of all tensors over those of the rule."""
        if self.theory is None:
            return 0.0
        excess = []
        for name, measured in self.measured_exponents(Quantity.GRADIENT).items():
            expected = self.gradient(name, 0)
            if expected is None or math.isnan(expected.exponent) or name in vanishing:
                continue
            excess.append(measured - expected.exponent)
        return common_part(excess)

    # --- theory -----------------------------------------------------------------------------------

    @cached_property
    def theory(self) -> Theory | None:
        """Expectations of theory; None where there is no plan, no growth or no run."""
        study = self.study
        if study.family is None or study.no_growth or not study.observations.runs:
            return None
        request = study.family.request
        facts = study.family.facts
        return Theory(
            parameterization=request.parameterization(request.algorithm.law),
            optimizer_law=request.algorithm.law,
            small=study.plans[study.sizes[0]],
            large=study.plans[study.sizes[-1]],
            ratio=study.sizes[-1] / study.sizes[0],
            same_output=self.same_output,
            grows=self.grows,
            order=tuple(study.observations.names(Quantity.OUTPUT)),
            key=study.observations.key,
            code_power=lambda tensor: facts.power(tensor, "matrix"),
            in_width=study.in_width,
            any_depth=study.in_width and study.has_user_optimizer,
            tokens_growth=self._expert_tokens,
            nonlinear=study.nonlinear,
        )

    @property
    def _expert_tokens(self) -> float:
        """Exponent of the tokens that one expert sees in a step."""
        study = self.study
        if study.family is None or study.axis != EXPERT_COUNT:
            return 0.0
        growth = study.sizes[-1] / study.sizes[0]
        exponents = [0.0]
        for change in study.family.facts.routing.values():
            exponents.append(math.log(change.active / growth) / math.log(growth))
        return min(exponents)

    @cached_property
    def same_output(self) -> dict[str, str]:
        """Modules whose output is that of another module."""
        key = self.study.observations.key
        modules = self.study.observations.runs[0].same_output
        return {key(module): key(maker) for module, maker in modules.items()}

    def grows(self, module: str) -> bool:
        """Return whether the output has more entries in a larger model.

        Only width adds entries to activations.
        """
        if not self.study.in_width:
            return True
        sizes = self.study.observations.at(module, Quantity.OUTPUT, 0)
        return len({moments.entries for moments in sizes.values()}) > 1

    def _of_activation(self, name: str, quantity: Quantity) -> Expected:
        """Return the prediction of theory; for outputs of a readout, with its multiplier.

        The gradient of the readout's output shows whether the multiplier comes before or after it.
        """
        in_width = self.study.in_width
        margin = BOUNDARY
        if self.study.axis == "depth" and self.study.depth_rule is None:
            margin = LEAST_GROWTH
        if self.theory is None:
            return Expected(0.0, bound=0.0, margin=margin)
        if self.study.has_user_optimizer and not in_width:
            # there may be multipliers after the branches: everything is of order one at most
            return Expected(bound=0.0, margin=margin)
        expected = replace(self.theory.expect(name, quantity), margin=margin)
        if expected.role != Role.READOUT or not in_width:
            return expected
        power = self.theory.forward_multiplier(name)
        measured = self.measured_exponents(Quantity.OUTPUT_GRADIENT).get(name, math.nan)
        if not power or not abs(measured - power) < abs(measured):
            return expected
        if quantity != Quantity.OUTPUT_GRADIENT:
            power = -power
        return replace(expected, exponent=expected.exponent + power, bound=expected.bound + power)

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
        if self.study.has_user_optimizer and maker in self.interior_readouts:
            # it may start with any output up to order one
            return replace(expected, two_sided=False, exponent=UNKNOWN, bound=0.0)
        if self.study.has_user_optimizer:
            # the gauge is not known: there may be a multiplier between input and output; an input
            # that shrinks is judged by itself
            is_law = expected.role == Role.READOUT and self._input(maker) > -BOUNDARY
            return replace(expected, two_sided=is_law)
        size = self._input(maker)
        # biases may dominate if the input shrinks, which is judged by itself
        return replace(
            expected, exponent=expected.exponent + size, two_sided=size > -BOUNDARY, bound=math.inf
        )

    @property
    def _has_lower_ends(self) -> bool:
        """Whether small sizes can be judged.

        Only in width, not if the first steps do not follow the law of the optimizer, and not for
        rules that let changes shrink.
        """
        study = self.study
        if not study.in_width or study.first_step or self.theory is None:
            return False
        return not study.observations.complete[0].ended

    def missing_alignment(self, name: str) -> float:
        """Return the power by which missing alignment reduces the change of a module.

        Updates and inputs of this layer count, or those of all layers of its role. Where nothing
        was measured, it is the largest possible one.
        """
        if self._alignment is None:
            return MISSING_ALIGNMENT
        module = self.same_output.get(name, name)
        alpha = self._alignment.by_module.get(module)
        if alpha is None:
            role = Role.READOUT if not self.grows(name) else Role.HIDDEN
            alpha = self._alignment.by_role.get(role)
        if alpha is None or math.isnan(alpha):
            return MISSING_ALIGNMENT
        return min(MISSING_ALIGNMENT, max(0.0, 1 - alpha))

    @cached_property
    def _alignment(self) -> "_Alignment | None":
        by_module, by_role = self.study.observations.alignment_exponents("alpha")
        if not by_module:
            return None
        return _Alignment(by_module, by_role)

    @cached_property
    def interior_readouts(self) -> frozenset[str]:
        """Modules with a readout whose output goes on into the network.

        The gradient of a model's output does not depend on the width. That of an inner number is a
        sum over the next layer, and starts smaller.
        """
        if self.theory is None:
            return frozenset()
        gradients = self.measured_exponents(Quantity.OUTPUT_GRADIENT)
        interior = set()
        for module, weight, role in self.theory.modules():
            power = self.theory.gauge_power(weight)
            if role == Role.READOUT and not gradients.get(module, -1.0) > -BOUNDARY - power:
                interior.add(module)
        return frozenset(interior)

    @property
    def _fading(self) -> float:
        """Power by which readouts inside the network make what follows from them smaller."""
        return MISSING_ALIGNMENT * min(2, len(self.interior_readouts))

    @cached_property
    def follows_gradients(self) -> bool:
        """Whether the size of updates follows that of gradients, as with SGD."""
        assert self.study.family is not None
        return self.study.family.request.algorithm.update_law.gradient > 0

    @property
    def _small_gradients(self) -> float:
        """Power by which bottlenecks and uniform attention may reduce the steps of SGD."""
        return MISSING_ALIGNMENT if self.follows_gradients else 0.0

    # --- measurements -----------------------------------------------------------------------------

    def fits(self, quantity: Quantity, step: int) -> dict[str, Fit]:
        """Return the fits of a quantity at one step, by module or tensor."""
        if (quantity, step) not in self._fits:
            fits = self.study.observations.fits([(quantity, step)], CONFIDENCE)
            self._fits[quantity, step] = {name: fit for (name, _, _), fit in fits}
        return self._fits[quantity, step]

    def measured_exponents(self, quantity: Quantity) -> dict[str, float]:
        """Return the exponents measured at initialization, by module or tensor."""
        return {name: fit.exponent for name, fit in self.fits(quantity, 0).items()}

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
    def _head_growth(self) -> float:
        """The power of the size by which heads grow; 0 if only their number grows."""
        study = self.study
        assert study.family is not None
        growths = [0.0]
        for score in study.family.facts.scores:
            growths.append(math.log(score.head_growth) / math.log(study.sizes[-1] / study.sizes[0]))
        return max(growths)

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


class _Alignment(NamedTuple):
    """Measured alignment of updates with inputs."""

    by_module: dict[str, float]
    by_role: dict[str, float]


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


def common_part(excess: list[float]) -> float:
    """Return the number of smallest absolute value, if all have the same sign; otherwise 0."""
    if len(excess) < FEWEST or min(excess) < 0 < max(excess):
        return 0.0
    return min(excess, key=abs)


def _or_zero(exponent: float) -> float:
    return 0.0 if math.isnan(exponent) else exponent
