"""Causes of steps that are not what learning rates and gradients imply."""

import math

from orderone.measure.judge.causes.context import Context
from orderone.measure.judge.causes.failed_lines import (
    FORWARD,
    Failed,
    fastest_of,
    is_small,
    name_of,
    names_of,
    select,
)
from orderone.observe.quantities import Quantity


def normalized_readouts(failed: Failed, context: Context) -> Failed:
    """Select what grows around a readout whose output is normalized."""
    if not context.normalized or select(failed, (Quantity.RATE, Quantity.WEIGHT)):
        return ()
    return [line for line in select(failed, FORWARD) if not is_small(line)]


def say_normalized_readouts(lines: Failed, context: Context) -> list[str]:
    fastest = fastest_of(lines)
    return [
        f"a norm divides the output of {context.normalized[0]} by its size, which starts like"
        f" {context.power(-0.5)}: changes behind the norm and gradients before it are too large by"
        f" this power in the first steps ({name_of(fastest)} grows like"
        f" {context.power(fastest.exponent)}); let the size of this output grow with the width, or"
        " normalize before the readout"
    ]


def loss_scale(failed: Failed, context: Context) -> Failed:
    lines = select(failed, (Quantity.OUTPUT_GRADIENT, Quantity.GRADIENT))
    return [line for line in lines if line.module == "" and math.isnan(line.bound)]


def say_loss_scale(lines: Failed, context: Context) -> list[str]:
    if lines[0].quantity == Quantity.GRADIENT:
        measured = context.power(lines[0].exponent)
        return [
            f"loss: the gradients of all tensors scale like {measured} times those of"
            f" {context.rule}, and the steps of this optimizer with them: is the loss"
            " multiplied or divided by a size?"
        ]
    return [
        f"loss: its gradient at the model's output scales like {context.power(lines[0].exponent)}"
        f" instead of {context.power(lines[0].predicted)}, and the steps of this optimizer with it:"
        " is the loss divided by a size, or is there a factor behind the model's output?"
    ]


def damped_steps(failed: Failed, context: Context) -> Failed:
    return select(failed, (Quantity.STEP, Quantity.UPDATE))


def say_damped_steps(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    names = names_of([line for line in lines if line.quantity == Quantity.UPDATE]) or "all tensors"
    measured = f"updates of {names} scale like {context.power(first.exponent)}"
    if first.quantity == Quantity.STEP:
        measured = f"updates of {names} scale like {context.power(first.exponent)} times it"
    if context.follows_gradients:
        return [
            f"clipped gradients: {measured}, not like learning rate times gradient: gradients are"
            " clipped or rescaled to a fixed norm; let the limit scale with the size, or leave it"
            " out"
        ]
    return [
        f"small gradients: {measured}, although learning rates scale correctly: eps is not small"
        " compared with the gradients (choose a smaller one), or gradients are clipped"
    ]
