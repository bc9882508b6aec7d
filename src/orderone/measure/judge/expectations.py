"""What theory expects of every module and tensor: exponents of the size n, and on which side they
may err.

Sizes of weights, gradients and updates follow from the plan, tensor by tensor: it sets initial
sizes and learning rates. Sizes of activations follow from `theory.exponents.rms`, by the role of
the module that makes them. A plan may write the same network in another gauge (a tied readout's
multiplier sits in the gain of the norm before it). This moves an activation by a power that the
plan knows, its change by the same power and its gradient by the inverse.

Theory bounds activations and their changes from above, because alignment is at most full. They may
grow no faster than allowed; shrinking is another finding than growing. Random sums at
initialization, and what a step does to a weight, are laws: both sides count.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from orderone.core.roles import Role
from orderone.observe.quantities import OF_TENSORS, UPDATES, Quantity
from orderone.optimizers.table import ALGORITHMS
from orderone.theory.exponents import Parameterization, rms

if TYPE_CHECKING:
    from orderone.planning import Plan, Row

# hidden layers of the network of S0 whose exponents are taken; more would let what grows grow more
DEPTH = 1
LAYERS: dict[str, int] = {
    Role.EMBEDDING: 1,
    Role.VECTOR: DEPTH + 1,
    Role.HIDDEN: DEPTH + 1,
    Role.READOUT: DEPTH + 2,
}
UNKNOWN = math.nan


@dataclass(frozen=True)
class Expected:
    """Expected exponent of one quantity."""

    exponent: float = UNKNOWN  # as the rule predicts it
    allowed: float = math.inf  # the largest exponent that keeps everything of order one
    law: bool = False  # the prediction holds on both sides
    role: str = ""
    rough: bool = False  # derived from the size of gradients, which follow their law less closely


@dataclass(frozen=True)
class Expectations:
    """Expectations of one rule, from the plans of the smallest and the largest model."""

    parameterization: Parameterization
    optimizer_law: str
    small: "Plan"
    large: "Plan"
    ratio: float  # of the sizes of the two
    same_output: Mapping[str, str]  # module -> the module whose output it hands on
    grows: Callable[[str], bool]  # does the output of a module have more entries in a larger model?
    key: Callable[[str], str]  # the name of a layer that both models share
    in_depth: bool = False  # the models differ in depth: theory keeps the stream of order one

    def of(self, name: str, quantity: Quantity) -> Expected:
        """Return the expected exponent of a module or tensor."""
        if quantity in OF_TENSORS:
            return self._of_tensor(name, quantity)
        if self.in_depth:
            return self._of_module_in_depth(name, quantity)
        return self._of_module(name, quantity)

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

    def _of_tensor(self, name: str, quantity: Quantity) -> Expected:
        row = self.rows[name][1]
        if quantity == Quantity.PENALTY:
            # penalty and gradient are normalized together: neither may win
            return Expected(allowed=0.0, role=row.role)
        if quantity == Quantity.WEIGHT:
            exponent = self._weight(name)
        elif quantity == Quantity.GRADIENT:
            exponent = self._gradient(name)
        elif quantity == Quantity.DECAY:
            exponent = 0.0  # every step shrinks a weight by the same fraction, at every size
        elif quantity == Quantity.UPDATE:
            exponent = self._update(name)
        else:
            exponent = self._relative_update(name)
        is_gradient = quantity == Quantity.GRADIENT
        law = ALGORITHMS[row.optimizer].update_law
        follows_gradient = law.gradient > 0 and quantity in UPDATES
        return Expected(
            exponent, law=not is_gradient, role=row.role, rough=is_gradient or follows_gradient
        )

    def _weight(self, name: str) -> float:
        row = self.rows[name][1]
        if row.role == Role.FIXED and row.constant is None:
            return UNKNOWN  # the model chooses how it starts
        return self._exponent(name, lambda row: row.init_std)

    def _gradient(self, name: str) -> float:
        if self.rows[name][1].role == Role.FIXED:
            return UNKNOWN
        return self._exponent(name, lambda row: row.factors.gradient)

    def _update(self, name: str) -> float:
        """Return the exponent of one step of the tensor's optimizer: S0 (12)."""
        rate = self._exponent(name, lambda row: row.lr)
        law = ALGORITHMS[self.rows[name][1].optimizer].update_law
        if law.spectral:  # the size of entries depends on the rank of the gradient
            return UNKNOWN
        if law.gradient:
            rate += law.gradient * self._gradient(name)
        if law.weight:
            rate += law.weight * self._exponent(name, lambda row: row.init_std)
        return rate

    def _relative_update(self, name: str) -> float:
        row = self.rows[name][1]
        if row.role in (Role.VECTOR, Role.FIXED) and row.constant is None:
            return UNKNOWN  # the start of a bias means nothing: torch's own shrinks with the width
        return self._update(name) - self._exponent(name, lambda row: row.init_std)

    # --- modules ----------------------------------------------------------------------------------

    @cached_property
    def _weights(self) -> dict[str, str]:
        """The tensor that makes a module's output, by module.

        Where modules inside have tensors too, no tensor makes the output alone: attention of torch
        owns what makes queries, keys and values, and another matrix comes after.
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
        """Return the module that makes this module's output."""
        if module in self._weights:
            return module
        return self.same_output.get(module, module)

    @cached_property
    def _sizes(self) -> dict[str, float]:
        initial = rms(self.parameterization, DEPTH)
        trained = rms(
            self.parameterization,
            DEPTH,
            training=True,
            optimizer=self.optimizer_law,
            alignment="worst",
        )
        return {name: float(exponent) for name, exponent in (trained | initial).items()}

    def _of_module_in_depth(self, module: str, quantity: Quantity) -> Expected:
        """Expect of a branch the multiplier that its last tensor took over.

        Changes have an upper bound only.
        """
        if quantity == Quantity.OUTPUT_GRADIENT:
            return Expected()
        weight = self._weights.get(self._maker(module))
        implied = UNKNOWN
        role = ""
        if weight:
            implied = self._exponent(weight, lambda row: row.factors.multiplier * row.factors.std)
            role = self.rows[weight][1].group
        known = not math.isnan(implied)
        allowed = implied if known else 0.0
        if quantity == Quantity.CHANGE:
            return Expected(allowed=allowed, role=role)
        return Expected(implied, allowed=allowed, law=known, role=role)

    def _of_module(self, module: str, quantity: Quantity) -> Expected:
        maker = self._maker(module)
        weight = self._weights.get(maker)
        role = self._role(weight, module) if weight else ""
        if not role and not self.grows(module) and quantity != Quantity.OUTPUT_GRADIENT:
            # something of fixed size: logits in another form, or no signal at all
            return Expected(UNKNOWN, allowed=0.0)

        layer = LAYERS.get(role)
        if layer is None:
            layer = LAYERS[Role.HIDDEN if self.grows(module) else Role.READOUT]
        implied = self._output(weight, maker) if weight else UNKNOWN
        known = not math.isnan(implied)
        gauge_shift = implied - self._sizes[f"h{layer}"] if known else 0.0

        if quantity == Quantity.OUTPUT_GRADIENT:
            return Expected(self._sizes[f"h'{layer}"] - gauge_shift, role=role)
        if quantity == Quantity.CHANGE:
            change = self._sizes[f"Δh{layer}"]
            if role == Role.VECTOR:  # a normalized output cannot change by more than its own size
                change = min(change, 0.0)
            return Expected(change + gauge_shift, allowed=gauge_shift, role=role)
        exponent = implied if known else self._sizes[f"h{layer}"]
        return Expected(exponent, allowed=gauge_shift, law=known, role=role)

    def forward_multiplier(self, module: str) -> float:
        """Return the power of the multiplier that the forward code has at a readout.

        The multiplier stands before or after the module.
        """
        weight = self._weights.get(self._maker(module))
        if not weight:
            return 0.0
        power = self._exponent(weight, lambda row: row.factors.gauge)
        return 0.0 if math.isnan(power) else power

    def _role(self, weight: str, module: str) -> str:
        """Return the role that the tensor has in this module.

        A tensor that several modules hold is tied: where the output does not grow, it is a readout.
        So is one whose role was overridden as fixed.
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
            small = 1.0  # at base size nothing grows, and the roles cannot be told
        return self._power(small, large)


def _parents(module: str) -> Iterator[str]:
    """Yield the modules that contain this one."""
    while module:
        module = module.rpartition(".")[0]
        yield module
