"""Causes that explain all failures, each with its condition and its sentence."""

from orderone.core.roles import Role
from orderone.measure.judge.causes.context import Context
from orderone.measure.judge.causes.failed_lines import (
    ACTIVATIONS,
    FORWARD,
    Failed,
    name_of,
    names_of,
    select,
)
from orderone.measure.judge.expected_scores import ATTENTION
from orderone.measure.judge.verdict import Reason
from orderone.observe.quantities import Quantity


def no_growth(failed: Failed, context: Context) -> Failed:
    return failed if context.no_growth else ()


def say_same_shapes(lines: Failed, context: Context) -> list[str]:
    return [
        "all models are equal: build returns a model of the same shapes at every size; does it"
        " use its argument?"
    ]


def base_equals_target(failed: Failed, context: Context) -> Failed:
    return failed if context.base_is_target else ()


def say_base_equals_target(lines: Failed, context: Context) -> list[str]:
    return [
        "base equals target: every factor of the plan is 1; use the same, smaller base at every"
        " size"
    ]


def broken_schedule(failed: Failed, context: Context) -> Failed:
    """Select failures of a schedule. Only a schedule changes the rates of a plan's optimizer."""
    if context.schedule_fault:
        return failed
    if context.planned:
        return select(failed, (Quantity.RATE,))
    return ()


def say_broken_schedule(lines: Failed, context: Context) -> list[str]:
    fault = context.schedule_fault
    if not fault:
        fault = (
            f"it sets the learning rate of {names_of(lines)} to a number that does not follow the"
            " plan (is it max_lr?)"
        )
    return [f"schedule: {fault}"]


def unfinished_plan(failed: Failed, context: Context) -> Failed:
    """Select failures in the forward pass, if the plan leaves a task to the model's code."""
    if not context.undone or select(failed, (Quantity.RATE, Quantity.UPDATE)):
        return ()
    return select(failed, (*FORWARD, Quantity.SCORES))


def say_unfinished_plan(lines: Failed, context: Context) -> list[str]:
    return [f"the plan cannot do this, change the model's code: {task}" for task in context.undone]


def unscaled_branches(failed: Failed, context: Context) -> Failed:
    if not context.unscaled_branches:
        return ()
    return select(failed, ACTIVATIONS)


def say_unscaled_branches(lines: Failed, context: Context) -> list[str]:
    return ["residual branches are not scaled with depth: pass depth='sqrt' or depth='completep'"]


def predicted_growth(failed: Failed, context: Context) -> Failed:
    if select(failed, (Quantity.RATE, Quantity.UPDATE)):
        return ()
    predicted = []
    for line in failed:
        if line.reason == Reason.PREDICTED_GROWTH and line.role != ATTENTION:
            predicted.append(line)
    return predicted


def say_predicted_growth(lines: Failed, context: Context) -> list[str]:
    worst = max(lines, key=lambda line: line.exponent)
    return [
        f"the rule itself: {context.rule} predicts that {name_of(worst)} grows (theory"
        f" {context.power(worst.predicted)}, measured {context.power(worst.exponent)}); mup keeps"
        " it of order one"
    ]


def standard_parameterization(failed: Failed, context: Context) -> Failed:
    """Select wrong rates of hidden matrices and readouts that are too fast by about one power."""
    if context.axis != "width" or context.rule == "standard":
        return ()
    rates = select(failed, (Quantity.RATE,))
    if context.one_rate:
        return rates
    excess = {line.role: line.exponent - line.predicted for line in rates}
    is_standard = excess.get(Role.HIDDEN, 0.0) > 0.75 and excess.get(Role.READOUT, 0.0) > 0.25
    return rates if is_standard else ()


def say_standard_parameterization(lines: Failed, context: Context) -> list[str]:
    return [
        f"standard parameterization, not {context.rule}: learning rates of {names_of(lines)} do not"
        f" change with the width as {context.rule} requires (one rate for all tensors and sizes)"
    ]
