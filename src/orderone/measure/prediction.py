"""What theory expects of every module and tensor: exponents of the size n, and on which side they
may err.

Sizes of weights, gradients and updates follow from the plan, tensor by tensor: initial sizes and
learning rates are what it sets. Sizes of activations follow from `theory.exponents.rms`, by the
role of the module that makes them. A plan may write the same network in another gauge (a tied
readout's multiplier sits in the gain of the norm before it), which moves an activation by a power
that the plan knows, its change by the same and its gradient by the inverse.

Theory bounds activations and their changes from above, because alignment is at most full: these may
grow no faster than allowed, and falling behind is another finding than growing. Random sums at
initialization, and what a step does to a weight, are laws: both sides count.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from orderone.optimizers.table import ALGORITHMS
from orderone.planning.init_check import output_factor
from orderone.theory.exponents import Parameterization, rms

if TYPE_CHECKING:
    from orderone.planning import Plan, Row

# hidden layers of the network of S0 whose exponents are taken; more would let what grows grow more
DEPTH = 1
LAYERS = {"embedding": 1, "vector": DEPTH + 1, "hidden": DEPTH + 1, "readout": DEPTH + 2}
OF_TENSORS = ("weight", "gradient", "update", "relative update", "decay", "penalty")
UNKNOWN = math.nan


@dataclass(frozen=True)
class Expected:
    """`exponent` as the rule predicts it; `allowed`: what it must not exceed if all is to be of
    order one; `law`: the prediction holds on both sides."""

    exponent: float = UNKNOWN
    allowed: float = math.inf
    law: bool = False
    role: str = ""
    rough: bool = False  # derived from the size of gradients, which follow their law less closely


@dataclass(frozen=True)
class Expectations:
    """For one rule, from the plans of the smallest and the largest model; `key` names a layer in
    both."""

    p: Parameterization
    law: str
    small: "Plan"
    large: "Plan"
    ratio: float
    same_output: Mapping[str, str]
    grows: Callable[
        [str], bool
    ]  # whether the output of a module has more entries in a larger model
    key: Callable[[str], str]
    in_depth: bool = (
        False  # the models differ in depth, of which theory says: the stream is of order one
    )

    def of(self, name: str, quantity: str) -> Expected:
        if quantity in OF_TENSORS:
            return self._of_tensor(name, quantity)
        return self._of_module(name, quantity)

    @property
    def known(self) -> "Mapping[str, tuple[Row, Row]]":
        """Tensors that the plans have."""
        return self._rows

    # --- tensors ----------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> "dict[str, tuple[Row, Row]]":
        small = {self.key(row.name): row for row in self.small.rows}
        return {self.key(row.name): (small[self.key(row.name)], row) for row in self.large.rows}

    def _exponent(self, name: str, of: "Callable[[Row], float | None]") -> float:
        one, two = (of(row) for row in self._rows[name])
        if one and two:
            return math.log(two / one) / math.log(self.ratio)
        return UNKNOWN

    def _of_tensor(self, name: str, quantity: str) -> Expected:
        row = self._rows[name][1]
        if quantity == "penalty":  # of what is normalized together, no part may win
            return Expected(allowed=0.0, role=row.role)
        if quantity == "weight":
            left_alone = (
                row.role == "fixed" and row.constant is None
            )  # its start is the model's own business
            exponent = UNKNOWN if left_alone else self._exponent(name, lambda r: r.init_std)
        elif quantity == "gradient":
            exponent = self._gradient(name)
        elif quantity == "decay":
            exponent = 0.0  # every step shrinks a weight by the same fraction, at every size
        else:
            exponent = self._update(name)
            if (
                quantity == "relative update"
            ):  # of biases the start means nothing: torch's own shrinks with the width
                random_bias = row.role in ("vector", "fixed") and row.constant is None
                exponent -= UNKNOWN if random_bias else self._exponent(name, lambda r: r.init_std)
        rough = quantity == "gradient" or (
            ALGORITHMS[row.optimizer].update_law.gradient > 0
            and quantity in ("update", "relative update")
        )
        return Expected(exponent, law=quantity != "gradient", role=row.role, rough=rough)

    def _gradient(self, name: str) -> float:
        if self._rows[name][1].role == "fixed":
            return UNKNOWN
        return self._exponent(name, lambda r: r.factors.gradient)

    def _update(self, name: str) -> float:
        """Of one step of the optimizer that has this tensor: S0 (12)."""
        rate = self._exponent(name, lambda r: r.lr)
        law = ALGORITHMS[self._rows[name][1].optimizer].update_law
        if law.spectral:  # the size of entries depends on the rank of the gradient
            return UNKNOWN
        if law.gradient:
            rate += law.gradient * self._gradient(name)
        if law.weight:
            rate += law.weight * self._exponent(name, lambda r: r.init_std)
        return rate

    # --- modules ----------------------------------------------------------------------------------

    @cached_property
    def _weights(self) -> "dict[str, str]":
        """The tensor that makes a module's output, by module. Where modules inside have tensors
        too, none does it alone: attention of torch owns what makes queries, keys and values, and
        another matrix comes after."""
        found: dict[str, str] = {}
        around = {
            outer for row in self.large.rows for module in row.uses for outer in _around(module)
        }
        for row in self.large.rows:
            for module in row.uses if row.name.endswith("weight") else ():
                if module not in around:
                    found.setdefault(self.key(module), self.key(row.name))
        return found

    @cached_property
    def _sizes(self) -> dict[str, float]:
        initial = rms(self.p, DEPTH)
        trained = rms(self.p, DEPTH, training=True, optimizer=self.law, alignment="worst")
        return {name: float(x) for name, x in (trained | initial).items()}

    def _in_depth(self, module: str, quantity: str) -> Expected:
        """A branch carries the multiplier that its last tensor took over; changes have an upper
        bound only."""
        weight = self._weights.get(
            module if module in self._weights else self.same_output.get(module, module)
        )
        if weight:
            implied = self._exponent(weight, lambda r: r.factors.multiplier * r.factors.std)
        else:
            implied = UNKNOWN
        known = not math.isnan(implied)
        role = self._rows[weight][1].group if weight else ""
        if quantity == "output gradient":
            return Expected()
        if quantity == "change":
            return Expected(allowed=implied if known else 0.0, role=role)
        return Expected(implied, allowed=implied if known else 0.0, law=known, role=role)

    def _of_module(self, module: str, quantity: str) -> Expected:
        if self.in_depth:
            return self._in_depth(module, quantity)
        if module in self._weights:
            maker = module
        else:
            maker = self.same_output.get(module, module)
        weight = self._weights.get(maker)
        role = self._role(weight, module) if weight else ""
        if not role and not self.grows(module) and quantity != "output gradient":
            return Expected(
                UNKNOWN, allowed=0.0
            )  # something of fixed size: logits in another form, or no signal at all
        layer = LAYERS.get(role) or LAYERS["hidden" if self.grows(module) else "readout"]
        implied = self._output(weight, maker) if weight else UNKNOWN
        known = not math.isnan(implied)
        shift = implied - self._sizes[f"h{layer}"] if known else 0.0
        if quantity == "output gradient":
            return Expected(self._sizes[f"h'{layer}"] - shift, role=role)
        if quantity == "change":
            change = self._sizes[f"Δh{layer}"]
            if role == "vector":  # what is normalized cannot change by more than its own size
                change = min(change, 0.0)
            return Expected(change + shift, allowed=shift, role=role)
        return Expected(
            implied if known else self._sizes[f"h{layer}"], allowed=shift, law=known, role=role
        )

    def behind(self, module: str) -> float:
        """The power of the multiplier that the forward code has at a readout: before it or after
        it."""
        weight = self._weights.get(
            module if module in self._weights else self.same_output.get(module, module)
        )
        power = self._exponent(weight, lambda r: r.factors.gauge) if weight else 0.0
        return 0.0 if math.isnan(power) else power

    def _role(self, weight: str, module: str) -> str:
        """A tensor that several modules hold is tied: where the output does not grow, it is a
        readout. So is one that was said to be fixed."""
        row = self._rows[weight][1]
        is_table = row.role == "embedding" and len(row.uses) == 1
        if not self.grows(module) and not is_table and row.role != "vector":
            return "readout"
        return row.role

    def _output(self, weight: str, module: str) -> float:
        """Of a module's initial output, as its weight implies it."""
        biases = self._rows.get(f"{module}.bias", (None, None))
        one, two = (
            output_factor(row, bias) for row, bias in zip(self._rows[weight], biases, strict=True)
        )
        if self._rows[weight][0].shape == self._rows[weight][0].base_shape:
            one = 1.0  # at base size nothing grows, and there are no roles to tell from
        if one and two:
            return math.log(two / one) / math.log(self.ratio)
        return UNKNOWN


def _around(module: str) -> Iterator[str]:
    """The modules that hold it."""
    while module:
        module = module.rpartition(".")[0]
        yield module
