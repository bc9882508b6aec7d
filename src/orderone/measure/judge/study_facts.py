"""Facts about a study that predictors share: theory, measured exponents, alignment.

Missing alignment makes a change smaller than its bound, by at most half a power: a sum of n terms
is at least n^1/2 times one of them. It is measured, layer by layer. Readouts inside the network
make what follows from them smaller too: they start with n^-1/2.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from orderone.core.roles import Role
from orderone.measure.fit import Fit
from orderone.measure.judge.known_numbers import slope
from orderone.measure.judge.resolution import largest_output_gradients
from orderone.measure.judge.theory import Theory
from orderone.measure.judge.thresholds import (
    BOUNDARY,
    DOMINANT,
    MISSING_ALIGNMENT,
    VANISHING,
)
from orderone.measure.observations import StudyResult
from orderone.measure.runs import EXPERT_COUNT
from orderone.observe.quantities import Quantity

CONFIDENCE = 0.99  # any value will do: only the exponents of these fits are used


@dataclass(frozen=True)
class StudyFacts:
    """Facts about one study, computed when they are first read."""

    study: StudyResult
    # power t of a multiplier n^-t that was not read from the forward code, by tensor
    gauges: dict[str, float] = field(default_factory=dict, compare=False)
    _fits: dict[tuple[Quantity, int], dict[str, Fit]] = field(  # cache of `fits`
        default_factory=dict, repr=False, compare=False
    )

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
            inner_powers=self._by_tensor(facts.inner_powers),
            front_powers=self._by_tensor(facts.front_powers),
        )

    def _by_tensor(self, traced: Mapping[str, float]) -> dict[str, float]:
        """Return numbers by the tensors of the models, from those by the traced tensors."""
        assert self.study.family is not None
        rows = self.study.plans[self.study.sizes[-1]].rows
        traced_as = self.study.family.facts.traced_as({row.name: row.shape for row in rows})
        key = self.study.observations.key
        return {key(name): traced[other] for name, other in traced_as.items() if other in traced}

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

    @cached_property
    def follows_gradients(self) -> bool:
        """Whether the size of updates follows that of gradients, as with SGD."""
        assert self.study.family is not None
        return self.study.family.request.algorithm.update_law.gradient > 0

    @cached_property
    def clipping(self) -> float:
        """Power of the size by which gradients are clipped; that of the tensor it changes most.

        It is 0 where it was not measured: steps that do not follow gradients, or no hooks.
        """
        fractions: dict[str, dict[int, float]] = {}
        for run in self.study.observations.complete:
            for name, fraction in run.clipped.items():
                key = self.study.observations.key(name)
                fractions.setdefault(key, {})[run.size] = fraction
        exponents = [0.0]
        for by_size in fractions.values():
            exponents.append(slope(by_size))
        return max((e for e in exponents if not math.isnan(e)), key=abs)

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

    def input_exponent(self, module: str) -> float:
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

    def has_fixed_entries(self, module: str) -> bool:
        """Return whether only the fixed entries of a module's input make it shrink.

            squares = fixed + n size^2

        An input may join n entries with a number of entries that does not grow: an action, a
        position, an image. The size of the others is the increase of the squares for each new
        entry, and does not fall.
        """
        squares: dict[int, list[float]] = {}
        entries: dict[int, int] = {}
        for (size, _), moments in self.study.observations.at(module, Quantity.INPUT, 0).items():
            squares.setdefault(size, []).append(moments.squares)
            entries[size] = moments.entries
        sizes = sorted(squares)
        if len(sizes) < 3 or entries[sizes[-1]] * sizes[0] >= entries[sizes[0]] * sizes[-1]:
            return False
        points: list[tuple[float, float]] = []  # size, squares of one of the new entries
        for small, large in pairwise(sizes):
            increase = fmean(squares[large]) - fmean(squares[small])
            if not increase > 0 or entries[large] <= entries[small]:
                return False
            points.append((math.sqrt(small * large), increase / (entries[large] - entries[small])))
        (first, before), (last, after) = points[0], points[-1]
        return math.log(after / before) / math.log(last / first) / 2 > -BOUNDARY

    # --- what makes sizes smaller -----------------------------------------------------------------

    @property
    def has_lower_ends(self) -> bool:
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
            if not self.grows(name):
                role = Role.READOUT
            else:
                role = Role.HIDDEN
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

    def is_interior(self, name: str, modules: Iterable[str]) -> bool:
        """Return whether the output of a readout goes on into the network.

        A tensor that no module applies by itself has no gradient of its output: the forward pass
        tells whether it makes the output of the model.
        """
        if any(module in self.interior_readouts for module in modules):
            return True
        if self.theory is None or self.study.family is None:
            return False
        applied = {weight for _, weight, _ in self.theory.modules()}
        at_output = {self.study.observations.key(n) for n in self.study.family.facts.at_output}
        return name not in applied and bool(at_output) and name not in at_output

    @cached_property
    def fading(self) -> float:
        """Power by which readouts and fixed entries make what follows from them smaller."""
        return MISSING_ALIGNMENT * min(2, len(self.interior_readouts)) + self._fixed_entries

    @property
    def _fixed_entries(self) -> float:
        """Power by which the inputs of layers shrink because some of their entries are fixed."""
        if self.theory is None or not self.study.in_width:
            return 0.0
        exponents = self.measured_exponents(Quantity.INPUT)
        powers = [0.0]
        for module, _, _ in self.theory.modules():
            if exponents.get(module, 0.0) < -BOUNDARY and self.has_fixed_entries(module):
                powers.append(-exponents[module])
        return min(MISSING_ALIGNMENT, max(powers))

    def shrinking_biases(self, name: str) -> float:
        """Return the power by which biases before a module make its input smaller.

            |W x + b|^2 = |W x|^2 + |b|^2

        torch draws biases of size fan_in^-1/2, and biases may start smaller. Where they are most of
        an output, it shrinks along with them until the product with the weight dominates.
        """
        return self._shrinking_biases.get(name, 0.0)

    @cached_property
    def _shrinking_biases(self) -> dict[str, float]:
        """The largest such power before each module, in the order of the forward pass."""
        powers: dict[str, float] = {}
        largest = 0.0
        for module in self.theory.order if self.theory is not None else ():
            powers[module] = min(MISSING_ALIGNMENT, largest)
            largest = max(largest, self._shrinking_bias(module))
        return powers

    def _shrinking_bias(self, module: str) -> float:
        """Return the power by which an output shrinks at the start along with its bias; or 0."""
        bias = self.fits(Quantity.WEIGHT, 0).get(f"{module}.bias")
        output = self.fits(Quantity.OUTPUT, 0).get(module)
        if bias is None or output is None or bias.exponent > -BOUNDARY:
            return 0.0
        observations = self.study.observations
        outputs = observations.at(module, Quantity.OUTPUT, 0)
        shares = []
        for run, moments in observations.at(f"{module}.bias", Quantity.WEIGHT, 0).items():
            if run[0] == self.study.sizes[0] and run in outputs:
                shares.append((moments.rms / outputs[run].rms) ** 2)
        if not shares or fmean(shares) < DOMINANT:
            return 0.0
        return max(0.0, -max(bias.exponent, output.exponent))

    @property
    def small_gradients(self) -> float:
        """Power by which bottlenecks and uniform attention may reduce the steps of SGD."""
        if self.follows_gradients:
            return MISSING_ALIGNMENT
        return 0.0

    def has_gradient(self, module: str) -> bool:
        """Return whether the gradient of a module's output is more than rounding error.

        The loss may not depend on an output: softmax cancels a number that is added to all classes.
        """
        own = self._output_gradients.get(module, math.inf)
        return not module or not own < VANISHING * max(self._output_gradients.values(), default=0.0)

    @cached_property
    def _output_gradients(self) -> dict[str, float]:
        return largest_output_gradients(self.study.observations)

    def multiplied(self, weight: str) -> float:
        """Return the absolute power of all multipliers of a tensor, read or not.

        Where layers are added along with the width, a branch may be divided by their number.
        """
        if not weight:
            return 0.0
        assert self.theory is not None
        power = self.theory.gauge_power(weight) + abs(self.gauges.get(weight, 0.0))
        return power + self.theory.depth_power(weight)


class _Alignment(NamedTuple):
    """Measured alignment of updates with inputs."""

    by_module: dict[str, float]
    by_role: dict[str, float]
