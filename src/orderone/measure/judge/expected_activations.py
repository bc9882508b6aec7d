"""Expected exponents of activations: inputs, outputs, their changes and gradients.

Theory predicts them from the plan (`theory`). Other measurements of the same runs correct the
prediction: the output of a matrix is judged relative to its input, and changes, inputs and
gradients get a lower end from the measured alignment. One function for each row of `quantities`.
"""

import math
from dataclasses import replace

from orderone.core.roles import Role
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.thresholds import BOUNDARY, LEAST_GROWTH, MISSING_ALIGNMENT
from orderone.measure.judge.verdict import UNKNOWN, Expected
from orderone.observe.quantities import Quantity


def output_at_start(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect a random sum: the initial sizes of the tensor and of its input."""
    expected = _of_activation(facts, name, Quantity.OUTPUT)
    if facts.theory is None or not expected.two_sided:
        return expected
    return _relative_to_input(facts, name, expected)


def output_later(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect at most the larger one of the initial output and of its change."""
    expected = _of_activation(facts, name, Quantity.OUTPUT)
    if facts.theory is None:
        return expected
    expected_change = _of_activation(facts, name, Quantity.CHANGE)
    exponent = _larger(expected.exponent, expected_change.exponent)
    bound = max(expected.bound, expected_change.bound)
    return replace(expected, exponent=exponent, bound=bound, two_sided=False)


def change(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect at most full alignment, and at least the measured one."""
    expected = _of_activation(facts, name, Quantity.CHANGE)
    if facts.theory is None or not facts.has_lower_ends or step < facts.study.observations.steps:
        return expected
    weight = facts.theory.weight_of(name)
    if (name and not weight) or not facts.has_gradient(name):
        return expected
    return _with_lower_end(
        expected,
        ("of the rule", min(_or_zero(expected.exponent), expected.bound)),
        ("multipliers of the tensor", facts.multiplied(weight)),
        ("missing alignment, measured", facts.missing_alignment(name)),
        ("inner readouts and fixed entries before it", facts.fading),
        ("biases before it that start smaller", facts.shrinking_biases(name)),
        ("bottlenecks, where steps follow gradients", facts.small_gradients),
    )


def input_at_start(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect inputs of order one: otherwise the layer learns less in large models.

    The input of a tied readout is smaller by the multiplier that the plan gives it.
    """
    if facts.theory is None or not facts.has_lower_ends:
        return None
    weight = facts.theory.weight_of(name)
    if not weight or facts.theory.same_output.get(name):
        return None
    role = facts.theory.expect(name, Quantity.CHANGE).role
    if role not in (Role.HIDDEN, Role.READOUT):
        return None
    start = Expected(_input_gauge(facts, name, weight, role), role=role)
    expected = _with_lower_end(
        start,
        ("order one", 0.0),
        ("inner readouts and fixed entries before it", facts.fading),
        ("biases before it that start smaller", facts.shrinking_biases(name)),
        ("multipliers of the tensor", facts.multiplied(weight)),
    )
    last = facts.fits(Quantity.INPUT, facts.study.observations.steps).get(name)
    if last is not None and not last.exponent < expected.least - BOUNDARY:
        return start  # training makes it of order one
    return expected


def _input_gauge(facts: StudyFacts, name: str, weight: str, role: str) -> float:
    """Return the power of the multipliers of a readout if they come before it, as measured."""
    if facts.theory is None or role != Role.READOUT:
        return 0.0
    power = -facts.theory.gauge_power(weight)
    measured = facts.measured_exponents(Quantity.INPUT).get(name, math.nan)
    return power if abs(measured - power) < abs(measured) else 0.0


def output_gradient(facts: StudyFacts, name: str, step: int) -> Expected | None:
    """Expect the gradient of the rule, and half a power less without alignment.

    At the output of the model it must not depend on the width if steps follow gradients. If the
    loss is the same function of the output at every size, it has no such factor: its gradient may
    still follow the output, as that of a mean squared error does where the output starts large.
    """
    if facts.theory is None or not facts.study.in_width:
        return None
    expected = _of_activation(facts, name, Quantity.OUTPUT_GRADIENT)
    if name == "" and facts.follows_gradients and not facts.grows(name):
        if facts.study.same_loss:
            return expected
        return replace(expected, exponent=expected.bound, two_sided=True, soft=False)
    weight = facts.theory.weight_of(name)
    if not facts.has_lower_ends or not weight or not facts.has_gradient(name):
        return expected
    with_end = _with_lower_end(
        expected,
        ("of the rule", expected.bound),
        ("missing alignment, the largest possible", MISSING_ALIGNMENT),
        ("inner readouts and fixed entries", facts.fading),
        ("multipliers of the tensor", facts.multiplied(weight)),
    )
    last = facts.fits(Quantity.OUTPUT_GRADIENT, facts.study.observations.steps - 1).get(name)
    if last is not None and not last.exponent < with_end.least - BOUNDARY:
        return expected
    return with_end


def _with_lower_end(
    expected: Expected, largest: tuple[str, float], *smaller: tuple[str, float]
) -> Expected:
    """Return the expectation with a lower end: the largest exponent minus what makes it smaller."""
    least = largest[1] - sum(power for _, power in smaller)
    return replace(expected, least=least, parts=(largest, *smaller))


def _of_activation(facts: StudyFacts, name: str, quantity: Quantity) -> Expected:
    """Return the prediction of theory; for outputs of a readout, with its multiplier.

    The gradient of the readout's output shows whether the multiplier comes before or after it.
    """
    in_width = facts.study.in_width
    margin = BOUNDARY
    if facts.study.axis == "depth" and facts.study.depth_rule is None:
        margin = LEAST_GROWTH
    if facts.theory is None:
        return Expected(0.0, bound=0.0, margin=margin)
    if facts.study.has_user_optimizer and not in_width:
        # there may be multipliers after the branches: everything is of order one at most
        return Expected(bound=0.0, margin=margin)
    expected = replace(facts.theory.expect(name, quantity), margin=margin)
    if expected.role != Role.READOUT or not in_width:
        return expected
    power = facts.theory.forward_multiplier(name)
    measured = facts.measured_exponents(Quantity.OUTPUT_GRADIENT).get(name, math.nan)
    if not power or not abs(measured - power) < abs(measured):
        return expected
    if quantity != Quantity.OUTPUT_GRADIENT:
        power = -power
    return replace(expected, exponent=expected.exponent + power, bound=expected.bound + power)


def _relative_to_input(facts: StudyFacts, name: str, expected: Expected) -> Expected:
    """Correct an initial output for the size of the matrix's input."""
    maker = facts.same_output.get(name, name)
    if expected.role == Role.EMBEDDING:
        # its input may be the shrinking output of a readout; biases may then dominate
        fading = min(0.0, facts.input_exponent(maker))
        return replace(
            expected,
            exponent=expected.exponent + fading,
            two_sided=fading > -BOUNDARY,
        )
    if expected.role not in (Role.HIDDEN, Role.READOUT):
        return expected
    if facts.study.has_user_optimizer and maker in facts.interior_readouts:
        # it may start with any output up to order one
        return replace(expected, two_sided=False, exponent=UNKNOWN, bound=0.0)
    if facts.study.has_user_optimizer:
        expected = _behind_factor(facts, maker, expected)
        # the gauge is not known: there may be a multiplier between input and output; an input
        # that shrinks is judged by itself
        is_law = expected.role == Role.READOUT and facts.input_exponent(maker) > -BOUNDARY
        return replace(expected, two_sided=is_law)
    size = facts.input_exponent(maker)
    # biases may dominate if the input shrinks, which is judged by itself
    return replace(
        expected, exponent=expected.exponent + size, two_sided=size > -BOUNDARY, bound=math.inf
    )


def _behind_factor(facts: StudyFacts, maker: str, expected: Expected) -> Expected:
    """Add the power of a factor in front of a layer, if the measured input has it."""
    assert facts.theory is not None
    power = facts.theory.front_power(maker)
    size = facts.input_exponent(maker)
    if not power or not abs(size - power) < abs(size):
        return expected
    return replace(expected, exponent=expected.exponent + power, bound=expected.bound + power)


def _larger(first: float, second: float) -> float:
    """Return the larger of the two; NaN if one is unknown."""
    if math.isnan(first) or math.isnan(second):
        return math.nan
    return max(first, second)


def _or_zero(exponent: float) -> float:
    return 0.0 if math.isnan(exponent) else exponent
