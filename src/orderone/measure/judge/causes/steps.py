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
        f"a norm divides the output of {context.normalized[0]} by its size, which is only"
        f" {context.power(-0.5)} at the start. In the first steps this makes changes after the norm"
        f" and gradients before it {context.power(0.5)} times too large ({name_of(fastest)} grows"
        f" like {context.power(fastest.exponent)}): normalize before the readout, or let the number"
        " of entries of this output grow with the width"
    ]


def loss_scale(failed: Failed, context: Context) -> Failed:
    lines = select(failed, (Quantity.OUTPUT_GRADIENT, Quantity.GRADIENT))
    return [line for line in lines if line.module == "" and math.isnan(line.bound)]


def say_loss_scale(lines: Failed, context: Context) -> list[str]:
    if lines[0].quantity == Quantity.GRADIENT:
        measured = context.power(lines[0].exponent)
        return [
            f"loss: the gradients of all tensors are {measured} times those of {context.rule}, and"
            " the steps of this optimizer are proportional to gradients: is the loss multiplied or"
            " divided by a size?"
        ]
    return [
        f"loss: its gradient at the model's output scales like {context.power(lines[0].exponent)}"
        f" instead of {context.power(lines[0].predicted)}, and the steps of this optimizer are"
        " proportional to it: does the loss divide by a size, or is there a factor after the"
        " model's output?"
    ]


def damped_steps(failed: Failed, context: Context) -> Failed:
    return select(failed, (Quantity.STEP, Quantity.UPDATE))


def say_damped_steps(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    names = names_of([line for line in lines if line.quantity == Quantity.UPDATE]) or "all tensors"
    measured = f"updates of {names} scale like {context.power(first.exponent)}"
    if first.quantity == Quantity.STEP:
        factor = context.power(first.exponent)
        measured = f"updates of {names} are {factor} times those that follow from learning rates"
    if context.follows_gradients:
        return [
            f"clipped gradients: {measured}, so they are not proportional to learning rate times"
            " gradient. Gradients are clipped or rescaled to a fixed norm: let the limit scale with"
            " the size, or leave it out"
        ]
    return [
        f"small gradients: {measured}, although learning rates scale correctly: eps is not small"
        " compared with the gradients (choose a smaller one), or gradients are clipped"
    ]
