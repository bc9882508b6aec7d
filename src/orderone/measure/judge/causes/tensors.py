"""Causes of single tensors: settings, initial sizes and factors that tensors do not compensate."""

import math

from orderone.core.roles import Role
from orderone.measure.judge.causes.context import Context
from orderone.measure.judge.causes.failed_lines import (
    Failed,
    is_small,
    names_of,
    select,
)
from orderone.measure.judge.verdict import Judgement, Reason
from orderone.observe.quantities import Quantity

MOST_FROZEN = 3  # frozen tensors in a list of causes


def frozen_tensors(failed: Failed, context: Context) -> Failed:
    return [line for line in failed if line.reason == Reason.FROZEN]


def say_frozen_tensors(lines: Failed, context: Context) -> list[str]:
    return [f"{line.module}: {line.cause}" for line in lines[:MOST_FROZEN]]


def different_settings(failed: Failed, context: Context) -> Failed:
    return select(failed, (Quantity.SETTINGS,))


def say_different_settings(lines: Failed, context: Context) -> list[str]:
    return [f"optimizer settings: {line.cause}" for line in lines]


def ignored_multipliers(shrinks: bool, failed: Failed, context: Context) -> Failed:
    """Select tensors whose initial size and rate ignore a multiplier in the forward code."""
    lines = []
    for line in failed:
        is_ignored = line.reason == Reason.MULTIPLIER and line.module not in context.queries
        if is_ignored and (line.multiplier < 0) == shrinks:
            lines.append(line)
    return lines


def say_ignored_multipliers(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"the forward code multiplies the product with {names_of(lines)} by"
        f" {context.power(first.multiplier)}, and neither initial size nor learning rate (which"
        f" scales like {context.power(first.exponent)}) compensates it: remove the factor, or"
        f" use the learning rate {context.power(first.predicted)}"
    ]


def multipliers(shrinks: bool, failed: Failed, context: Context) -> Failed:
    """Select numbers in the forward code that no tensor compensates.

    What they multiply was measured: a wrong initial size makes that wrong, too.
    """
    if select(failed, (Quantity.WEIGHT,)):
        return ()
    lines = select(failed, (Quantity.MULTIPLIER,))
    return [line for line in lines if (line.multiplier < 0) == shrinks]


def say_multipliers(lines: Failed, context: Context) -> list[str]:
    return [f"multiplier: {line.cause}" for line in lines]


def unscaled_scores(failed: Failed, context: Context) -> Failed:
    """Select queries that ignore the factor by which the forward code multiplies scores."""
    lines = [line for line in failed if line.reason == Reason.MULTIPLIER]
    return [line for line in lines if line.module in context.queries]


def say_unscaled_scores(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        "attention scale: scores in the forward code are"
        f" {context.power(first.multiplier)} times queries times keys / head size, and neither"
        f" initial size nor learning rate of {names_of(lines)} compensates this factor: divide by"
        " the head size, and by no other power of the width"
    ]


def wrong_rates(role: Role, failed: Failed, context: Context) -> Failed:
    lines = select(failed, (Quantity.RATE,), role)
    return [line for line in lines if line.reason != Reason.MULTIPLIER]


def say_wrong_rates(fault: str, lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    tied = ""
    if context.tied and first.role == Role.EMBEDDING:
        tied = "tied weights: "
    if math.isnan(first.exponent):
        return [f"{tied}{fault}: {first.module}: {first.cause}"]
    return [
        f"{tied}{fault}: learning rates of {names_of(lines)} scale like"
        f" {context.power(first.exponent)}; {context.rule} requires"
        f" {context.power(first.predicted)}"
    ]


def wrong_starts(is_readout: bool, failed: Failed, context: Context) -> Failed:
    """Select wrong initial sizes of weights; without any, those of outputs.

    Growth inside of the network is a symptom, and so are the outputs behind it.
    """
    starts = []
    for line in select(failed, (Quantity.WEIGHT,)):
        if (line.role == Role.READOUT) == is_readout:
            starts.append(line)
    if starts or select(failed, (Quantity.WEIGHT, Quantity.RATE)):
        return starts
    for line in select(failed, (Quantity.OUTPUT,)):
        if line.step:
            continue
        if math.isfinite(line.bound) and not is_small(line):
            break
        if not math.isfinite(line.bound) and (line.role == Role.READOUT) == is_readout:
            starts.append(line)
    return starts


def say_wrong_starts(lines: Failed, context: Context) -> list[str]:
    """Return one sentence for each role."""
    by_role: dict[str, list[Judgement]] = {}
    for line in lines:
        by_role.setdefault(line.role, []).append(line)
    sentences = []
    for role, starts in by_role.items():
        readout = ""
        if role == Role.READOUT:
            readout = "readout not scaled: "
        sentences.append(
            f"{readout}initial size of {names_of(starts)} scales like"
            f" {context.power(starts[0].exponent)}; {context.rule} requires"
            f" {context.power(starts[0].predicted)}"
        )
    return sentences


def wrong_decay(failed: Failed, context: Context) -> Failed:
    """Select wrong weight decays; a wrong learning rate also makes the decay wrong."""
    penalties = select(failed, (Quantity.PENALTY,))
    if penalties:
        return penalties
    wrong_rates = {line.module for line in select(failed, (Quantity.RATE,))}
    decays = []
    for line in select(failed, (Quantity.DECAY,)):
        if line.module not in wrong_rates:
            decays.append(line)
    return decays


def say_wrong_decay(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    if first.quantity == Quantity.PENALTY:
        return [
            f"weight decay: the penalty of {names_of(lines)} is normalized together with the"
            f" gradient; weight_decay scales like {context.power(first.exponent)}, and must scale"
            f" like gradient / weight, {context.power(first.predicted)}; or use decoupled weight"
            " decay (AdamW)"
        ]
    return [
        f"weight decay: a step shrinks {names_of(lines)} by a fraction that scales like"
        f" {context.power(first.exponent)}; keep lr * weight_decay the same at every size"
        " (decay='independent')"
    ]


def wrong_eps(failed: Failed, context: Context) -> Failed:
    return select(failed, (Quantity.EPS,))


def say_wrong_eps(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"eps of {names_of(lines)} is not small compared with the gradient, and scales like"
        f" {context.power(first.exponent)} instead of {context.power(first.predicted)}: it makes"
        " the steps of large models smaller; choose a smaller eps, or let it scale like the"
        " gradient"
    ]
