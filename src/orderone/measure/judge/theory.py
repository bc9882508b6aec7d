"""Exponents that a rule predicts for every module and tensor of the plans.

Sizes of weights, gradients and updates come from the plan, tensor by tensor: it sets initial sizes
and learning rates. Sizes of activations follow from `theory.exponents.rms`, by the role of the
module that computes them, in the network of Stratos, "Scale-Invariant Parameterizations". A plan
may write the same network in another gauge (a tied readout's multiplier sits in the gain of the
norm before it). This moves an activation by a power that the plan knows, its change by the same
power and its gradient by the inverse.

Theory bounds activations and their changes from above, because alignment is at most full. They may
grow no faster than the bound; smaller exponents are reported as SHRINKS. For random sums at
initialization and for updates of weights, theory predicts the exponent itself: deviations on both
sides count.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from orderone.core.roles import Role
from orderone.measure.judge.verdict import UNKNOWN, Expected
from orderone.observe.quantities import OF_TENSORS, Quantity
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
    # power of the size by which layers multiply their own product, by tensor
    inner_powers: Mapping[str, float] = field(default_factory=dict)
    # power of the size by which code multiplies what a layer reads, by tensor
    front_powers: Mapping[str, float] = field(default_factory=dict)

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
            if role != Role.READOUT:
                implied += self.inner_powers.get(weight, 0.0)
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
        if quantity != Quantity.OUTPUT:  # which is judged relative to its input
            gauge_shift += self.front_power(maker)
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

    def front_power(self, module: str) -> float:
        """Return the power of the size by which code multiplies what a layer reads."""
        weight = self._weights.get(self._maker(module), "")
        if not weight or self._role(weight, module) == Role.READOUT:
            return 0.0
        return self.front_powers.get(weight, 0.0)

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

    def fixed_features(self, module: str) -> int:
        """Return the number of features of a readout's output; 0 for other modules."""
        weight = self.weight_of(module)
        if not weight or self._role(weight, module) != Role.READOUT:
            return 0
        small, large = self.rows[weight]
        same = [n for n, before in zip(large.shape, small.shape, strict=True) if n == before]
        return math.prod(same)

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
        if math.isnan(power):
            return 0.0
        return max(0.0, power)

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
