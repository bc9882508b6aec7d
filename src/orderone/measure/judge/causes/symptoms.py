"""Causes that show in sizes of the forward and the backward pass only."""

from orderone.core.roles import Role
from orderone.measure.judge.causes.context import Context
from orderone.measure.judge.causes.failed_lines import (
    ACTIVATIONS,
    FORWARD,
    Failed,
    fastest_of,
    is_small,
    name_of,
    names_of,
    quoted,
    select,
)
from orderone.measure.judge.expected_scores import ATTENTION
from orderone.measure.judge.thresholds import BOUNDARY
from orderone.measure.judge.verdict import Judgement
from orderone.observe.quantities import Quantity


def attention(failed: Failed, context: Context) -> Failed:
    """Select scores that are wrong, unless the residual stream grows with another axis."""
    if context.axis != "width":
        return ()
    return [line for line in failed if line.role == ATTENTION]


def say_attention(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    if is_small(first):
        return [
            f"attention scale: scores of {names_of(lines)} shrink like"
            f" {context.power(first.exponent)} (expected {context.power(first.predicted)}): they"
            " are divided by a power of the model's width; divide by the head size alone"
        ]
    return [
        f"attention scale: scores of {names_of(lines)} grow like"
        f" {context.power(first.exponent)}; divide queries times keys by the head size, not by"
        " its square root"
    ]


def wrong_projections(failed: Failed, context: Context) -> Failed:
    """Select wrong scores whose queries or keys are wrong already, in the same direction."""
    return [line for line in attention(failed, context) if _projections_of(line, context)]


def say_wrong_projections(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    outputs = []
    for name in _projections_of(first, context):
        outputs.append(f"{quoted(name)} ({context.power(context.projections[name])})")
    direction = "shrink" if is_small(first) else "grow"
    return [
        f"attention: scores of {names_of(lines)} {direction} like {context.power(first.exponent)},"
        f" because the output of {' and '.join(outputs)} does: look at what the forward code"
        " multiplies it by"
    ]


def _projections_of(line: Judgement, context: Context) -> list[str]:
    """Return the modules of an attention whose queries or keys are as wrong as its scores."""
    sign = -1 if is_small(line) else 1
    inside = f"{line.module}." if line.module else ""
    names = []
    for name, exponent in context.projections.items():
        if name.startswith(inside) and sign * exponent > BOUNDARY:
            names.append(name)
    return names


def small_inputs(failed: Failed, context: Context) -> Failed:
    return select(failed, (Quantity.INPUT,))


def say_small_inputs(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"the input of module {first.module!r} shrinks like {context.power(first.exponent)}, so"
        " this module and all modules after it learn less in large models: look for a division"
        " before it (a normalization to length one needs a factor sqrt(n), a softmax over channels"
        " a factor n)"
    ]


def small_changes(failed: Failed, context: Context) -> Failed:
    """Select what shrinks, if nothing grows."""
    if not all(is_small(line) for line in failed):
        return ()
    changes = select(failed, (Quantity.CHANGE, Quantity.SCORE_CHANGE))
    return changes or select(failed, ACTIVATIONS)


def say_small_changes(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"{name_of(first)} shrinks ({context.power(first.exponent)}) by more than the alignment of"
        " its layer explains: look for a division in the forward code"
    ]


def small_output_gradients(failed: Failed, context: Context) -> Failed:
    lines = select(failed, (Quantity.OUTPUT_GRADIENT,))
    return lines if len(lines) == len(failed) else ()


def say_small_output_gradients(lines: Failed, context: Context) -> list[str]:
    last = lines[-1]
    return [
        f"the gradient at the output of {quoted(last.module)} shrinks like"
        f" {context.power(last.exponent)} (at least {context.power(last.least)} is expected): code"
        " after this module multiplies its output by a number that shrinks with the width"
    ]


def growing_branches(failed: Failed, context: Context) -> Failed:
    grown = select(failed, FORWARD)
    deeper = context.in_depth or context.deeper
    if deeper and len(grown) == len(failed) and not any(is_small(line) for line in grown):
        return grown
    return ()


def say_growing_branches(lines: Failed, context: Context) -> list[str]:
    return [
        f"residual branches are not scaled with depth: {name_of(lines[0])} grows like"
        f" {context.power(lines[0].exponent)}; multiply what every branch adds by 1/sqrt(L) or"
        " 1/L"
    ]


def growing_inputs(failed: Failed, context: Context) -> Failed:
    """Select what grows first, if the input of its module grows too: the cause is before it."""
    if context.axis != "width":
        return ()
    for line in select(failed, FORWARD):
        if not is_small(line):
            grows = context.inputs.get(line.module, 0.0) > BOUNDARY
            return [line] if grows else ()
    return ()


def say_growing_inputs(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"the input of {quoted(first.module)} grows like"
        f" {context.power(context.inputs[first.module])}, and {name_of(first)} with it"
        f" ({context.power(first.exponent)}): look at what the forward code adds up or multiplies"
        " before it (a sum over channels needs a factor 1/n)"
    ]


def growing_readout(failed: Failed, context: Context) -> Failed:
    roles = {line.role for line in failed if line.role}
    return failed if roles == {Role.READOUT} else ()


def say_growing_readout(lines: Failed, context: Context) -> list[str]:
    fastest = fastest_of(lines)
    return [f"readout not scaled: {name_of(fastest)} grows like {context.power(fastest.exponent)}"]


def anything(failed: Failed, context: Context) -> Failed:
    grown = [line for line in select(failed, FORWARD) if not is_small(line)]
    return grown or failed


def say_growing_activations(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    fastest = fastest_of(lines)
    return [
        f"{name_of(first)} is the first in the forward pass that grows"
        f" ({context.power(first.exponent)}); {name_of(fastest)} grows fastest"
        f" ({context.power(fastest.exponent)}): look for a factor in the forward code there"
    ]
