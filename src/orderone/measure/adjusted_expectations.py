"""What to expect of each line of a check: the prediction, corrected by what the same runs show of
other things.

A matrix is judged by what it makes of its input, whatever came before. Scores are judged by the
sizes of queries and keys.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from orderone.measure.prediction import OF_TENSORS, Expectations, Expected
from orderone.measure.runs import SAME
from orderone.measure.study import Study
from orderone.measure.verdict import BOUNDARY
from orderone.optimizers.table import ALGORITHMS
from orderone.planning.counterparts import stack_of

LEVEL = 0.1  # exponents below this are those of something that does not depend on the size
CONFIDENCE = 0.99  # of fits whose interval nobody reads


@dataclass
class Outlook:
    study: Study
    _measured: dict[str, dict[str, float]] = field(default_factory=dict)

    def of(self, name: str, quantity: str, step: int) -> Expected | None:
        if self.study.own and self.study.axis == "depth" and quantity in ("output", "change"):
            return Expected(
                allowed=0.0
            )  # multipliers may stand behind the branches: all is of order one at most
        if self.expectations is None:
            if quantity in (*OF_TENSORS, "output gradient"):
                return None
            return Expected(0.0, allowed=0.0)
        if quantity in OF_TENSORS and name not in self.expectations.known:
            return None
        if quantity == "score change":
            return Expected(
                math.nan if self.study.axis == "depth" else self._scores,
                allowed=0.0,
                role="attention",
            )
        if quantity == "update" and self.study.own:
            expected = self._bias(name)
        else:
            expected = self._of(name, quantity)
        if expected is None:
            return None
        if quantity == "output" and step == 0 and expected.law:
            return self._made(name, expected)
        if quantity == "penalty":  # it goes with the gradient that the rule foretells
            return replace(expected, allowed=-self._faint(name))
        if expected.rough and quantity != "gradient":
            return self._followed(name, quantity, expected)
        if quantity == "output" and step > 0:  # what training adds is bounded, and no law
            change = self._of(name, "change")
            return replace(
                expected, exponent=_larger(expected.exponent, change.exponent), law=False
            )
        return expected

    def _made(self, name: str, expected: Expected) -> Expected:
        """What a matrix makes of its input at initialization, whatever the size of that."""
        if (
            expected.role == "embedding"
        ):  # of what a readout gave, which fades; biases may stand in for it
            fading = min(0.0, self._input(self.same_output.get(name, name)))
            return replace(expected, exponent=expected.exponent + fading, law=fading > -BOUNDARY)
        if expected.role not in ("hidden", "readout"):
            return expected
        if (
            self.study.own
        ):  # its gauge is not known: a multiplier may stand between input and output
            return replace(expected, law=expected.role == "readout")
        return replace(
            expected, exponent=expected.exponent + self._input(self.same_output.get(name, name))
        )

    def _of(self, name: str, quantity: str) -> Expected:
        """The prediction; at a readout with a multiplier behind it, moved by that. Its gradient
        tells where it stands."""
        assert self.expectations is not None  # nobody asks otherwise
        expected = self.expectations.of(name, quantity)
        if expected.role != "readout" or quantity in OF_TENSORS or self.study.axis == "depth":
            return expected
        power = self.expectations.behind(name)
        seen = self._exponents("output gradient").get(name, math.nan)
        if not power or not abs(seen - power) < abs(seen):
            return expected
        power = power if quantity == "output gradient" else -power
        return replace(
            expected, exponent=expected.exponent + power, allowed=expected.allowed + power
        )

    def _followed(self, name: str, quantity: str, expected: Expected) -> Expected:
        """Steps of SGD follow the gradient: anything between the law and what is left of it is as
        predicted."""
        seen = self._exponents(quantity).get(name, expected.exponent)
        return replace(
            expected,
            exponent=min(max(seen, expected.exponent + self._faint(name)), expected.exponent),
        )

    def _faint(self, name: str) -> float:
        """By what power the gradient stays behind its law, if the rate is as the rule asks: a
        bottleneck lets little through, and so does attention that still looks everywhere. In a
        gauge that is not known it is a root at most: what is larger may be a multiplier."""
        assert self.expectations is not None
        law = self.expectations.of(name, "gradient").exponent
        seen = self._exponents("gradient").get(name, math.nan)
        if math.isnan(seen - law) or (self.study.own and not self.rate_is_right(name)):
            return 0.0
        return min(0.0, max(seen - law, -0.5) if self.study.own else seen - law)

    def _bias(self, name: str) -> Expected | None:
        """In a gauge that is not known, a bias has that of the output it is added to, if that is
        right. A vector that starts at random and of order one (a table of positions) has nothing in
        front of it."""
        assert self.expectations is not None
        row = self.expectations.known[name][1]
        if (
            row.role == "vector"
            and row.constant is None
            and abs(self._exponents("weight").get(name, 1.0)) < LEVEL
        ):
            return self.expectations.of(name, "update")
        module = name.rpartition(".")[0]
        tensor = name.rpartition(".")[2]
        output = self.expectations.of(module, "output")
        seen = self._exponents("output").get(module)
        if (
            tensor != "bias"
            or seen is None
            or not output.law
            or not abs(seen - output.exponent) < BOUNDARY
        ):
            return None
        return self.expectations.of(name, "update")

    @cached_property
    def expectations(self) -> Expectations | None:
        study = self.study
        if study.family is None or study.no_growth or not study.observations.runs:
            return None
        request = study.family.request
        return Expectations(
            p=request.parameterization(request.algorithm.law),
            law=request.algorithm.law,
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
        key = self.study.observations.key
        found = self.study.observations.runs[0].same_output
        return {key(module): key(maker) for module, maker in found.items()}

    def _grows(self, module: str) -> bool:
        """Whether the output has more entries in a larger model; in a deeper one, no layer has."""
        sizes = self.study.observations.at(module, "output", 0)
        return (
            self.study.axis == "depth" or len({moments.entries for moments in sizes.values()}) > 1
        )

    def wrong_start(self, name: str, quantity: str, exponent: float) -> tuple[float, float] | None:
        """If an update is off only for the tensor's initial size: the exponent of that, and what it
        should be."""
        if self.expectations is None or name not in self.expectations.known:
            return None
        start = self._exponents("weight").get(name, math.nan)
        asked = self.expectations.of(name, "weight").exponent
        update = self.expectations.of(name, "update").exponent
        if quantity == "relative update":
            off = start + exponent - update
        else:  # Adafactor's steps are as large as the tensor is
            relative = ALGORITHMS[self.expectations.known[name][1].optimizer].update_law.weight
            off = exponent - update - (start - asked) if relative else math.nan
        return (start, asked) if abs(off) < BOUNDARY else None

    def rate_is_right(self, name: str) -> bool:
        """Whether the optimizer's rates of a tensor scale over the sizes as the rule's do."""
        study = self.study
        rates = {}
        for run in study.observations.runs:
            if run.rates and run.rates[0].get(name):
                rates[run.size] = run.rates[0][name]
        asked = {
            size: row.lr
            for size in rates
            if size in study.plans
            for row in study.plans[size].rows
            if row.name == name
        }
        factors = [rates[size] / rate for size, rate in asked.items() if rate]
        return len(factors) > 1 and max(factors) <= (1 + SAME) * min(factors)

    def _exponents(self, quantity: str) -> dict[str, float]:
        """As measured at initialization: a matrix is judged by what it makes of its input, not by
        what came before."""
        if quantity not in self._measured:
            fits = self.study.observations.fits([(quantity, 0)], CONFIDENCE)
            self._measured[quantity] = {name: fit.exponent for (name, _, _), fit in fits}
        return self._measured[quantity]

    def _input(self, module: str) -> float:
        """Of what a module reads, before a multiplier of the plan."""
        study = self.study
        ends = [study.plans[size].multipliers for size in (study.sizes[0], study.sizes[-1])]
        one, two = (
            math.prod(m.value for m in ms if m.module == module and m.side == "input")
            for ms in ends
        )
        return self._exponents("input").get(module, 0.0) - math.log(two / one) / math.log(
            study.sizes[-1] / study.sizes[0]
        )

    @cached_property
    def _scores(self) -> float:
        """By what power scores may be foretold to grow: aligned queries and keys give d_H, which
        the model divides by d_H^power, and the sizes of queries and keys say the rest
        (`theory.exponents.Attention`)."""
        study = self.study
        if study.family is None or not study.family.seen.scores:
            return 0.0
        natural = replace(study.family.request, score_power=None).power
        outputs = self._exponents("output")
        foretold = []
        for score in study.family.seen.scores:
            growth = math.log(score.head_growth) / math.log(study.sizes[-1] / study.sizes[0])
            sizes = [self._mean(outputs, names) for names in (score.queries, score.keys)]
            foretold.append(growth * (natural + score.power) + sum(sizes))
        return max(0.0, *foretold)

    @staticmethod
    def _mean(outputs: dict[str, float], tensors: tuple[str, ...]) -> float:
        """Of the modules that hold these tensors, or the same ones in other layers."""
        stacks = {stack_of(tensor.rpartition(".")[0]) for tensor in tensors}
        found = [exponent for name, exponent in outputs.items() if stack_of(name) in stacks]
        return sum(found) / len(found) if found else 0.0


def _larger(one: float, two: float) -> float:
    if math.isnan(one) or math.isnan(two):
        return math.nan
    return max(one, two)
