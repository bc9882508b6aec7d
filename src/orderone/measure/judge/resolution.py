"""Lines that measurements cannot decide: rounding errors, chance, small models that turn back."""

import math
from collections.abc import Iterable, Mapping

import torch

from orderone.measure.judge.known_numbers import deviation_of_start
from orderone.measure.judge.thresholds import (
    CANCELLED,
    DRAWN,
    RESOLUTION,
    ROUNDED,
    VANISHING,
)
from orderone.measure.judge.verdict import (
    SYMBOLS,
    Expected,
    Finding,
    Reason,
    Verdict,
    verdict_on_fit,
)
from orderone.measure.observations import Line, Observations
from orderone.measure.recording import CHANGES
from orderone.observe.precision import Precision
from orderone.observe.quantities import Quantity

# outputs are those of the start plus a sum of steps
SUMS_OF_STEPS = (Quantity.CHANGE, Quantity.SCORE_CHANGE, Quantity.OUTPUT)


def without_turns(
    observations: Observations, line: Line, expected: Expected, failure: Finding, confidence: float
) -> Finding:
    """Return UNCLEAR where outputs seem to grow because those of small models turn back.

        |h_T - h_0| <= max_t |h_t - h_0|

    If the left-hand side grows like a power of the size, so does the right-hand side.
    """
    name, quantity, step = line
    if quantity not in SUMS_OF_STEPS or step < 2:
        return failure
    largest = observations.fit_of_largest(name, quantity, step, confidence)
    if largest is None:
        return failure
    axis = observations.axis
    if verdict_on_fit(largest, expected, axis).verdict == Verdict.FAIL:
        return failure
    reason = (
        f"but the largest change during the {step} steps scales like"
        f" {SYMBOLS[axis]}^{largest.exponent:+z.2f}: in small models, later steps undo earlier"
        " ones; use a smaller learning rate"
    )
    return Finding(Verdict.UNCLEAR, f"{failure.cause}; {reason}")


def beyond_chance(
    observations: Observations, line: Line, excess: float, features: int, failure: Finding
) -> Finding:
    """Return UNCLEAR where the initial outputs of a readout differ by chance.

    Each of its few features is one random sum, the same for samples whose inputs are alike. So the
    outputs are no more random numbers than features.
    """
    name, quantity, step = line
    if quantity != Quantity.OUTPUT or step or not features:
        return failure
    starts = observations.at(name, quantity, step)
    deviation = deviation_of_start(starts, features)
    if not abs(excess) <= DRAWN * deviation:
        return failure
    cause = (
        f"{failure.cause}; but {features} random features explain {DRAWN * deviation:.2f} by"
        " chance: use more seeds"
    )
    return Finding(Verdict.UNCLEAR, cause, Reason.NOISY)


def coarsest(dtypes: Iterable[torch.dtype], precision: Precision) -> float:
    """Return the relative distance of neighbouring numbers in the coarsest precision of outputs.

    It is that of autocast, or of a parameter.
    """
    used = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    if precision.half is not None:
        used.append(precision.half)
    return max((torch.finfo(dtype).eps for dtype in used), default=0.0)


def if_resolved(
    observations: Observations, line: Line, finding: Finding, precision: float
) -> Finding:
    """Return UNCLEAR where a change of outputs is smaller than their rounding errors.

    Rounding errors hide a change that falls with the size, and one that grows while it is small. A
    change that fails at the largest size by more than rounding stays FAIL.
    """
    name, quantity, step = line
    compared = {change: of for of, change in CHANGES.items()}.get(quantity)
    if compared is None:
        return finding
    outputs = observations.at(name, compared, 0)
    unresolved: set[int] = set()
    for run, change in observations.at(name, quantity, step).items():
        if run in outputs and change.rms < RESOLUTION * precision * outputs[run].rms:
            unresolved.add(run[0])
    largest = max(size for size, _ in observations.at(name, quantity, step))
    if not unresolved or (finding.verdict == Verdict.FAIL and largest not in unresolved):
        return finding
    cause = (
        "inconclusive: the change is smaller than the rounding errors of the outputs; use a larger"
        " learning rate, more steps, or precision='float32'"
    )
    return Finding(Verdict.UNCLEAR, cause)


def vanishing_gradients(observations: Observations) -> frozenset[str]:
    """Return the tensors whose gradient is rounding error."""
    sizes = {}
    for name in observations.names(Quantity.GRADIENT):
        sizes[name] = observations.largest(name, Quantity.GRADIENT)
    arriving = largest_output_gradients(observations)
    vanishing = set()
    if sizes:
        median = sorted(sizes.values())[len(sizes) // 2]
        for name, size in sizes.items():
            cancels = _gradient_cancels(observations, name)
            if size < VANISHING * median or cancels or _nothing_arrives(arriving, name, size):
                vanishing.add(name)
    return frozenset(vanishing | _rounded_gradients(observations))


def largest_output_gradients(observations: Observations) -> dict[str, float]:
    """Return the largest gradient that arrives at the output of each module."""
    names = observations.names(Quantity.OUTPUT_GRADIENT)
    sizes = {name: observations.largest(name, Quantity.OUTPUT_GRADIENT) for name in names}
    return {name: size for name, size in sizes.items() if math.isfinite(size)}


def _nothing_arrives(arriving: Mapping[str, float], name: str, gradient: float) -> bool:
    """Return whether only rounding errors arrive at a module, and its tensor sums them up.

    Softmax cancels a number that is added to all classes, and with it the gradients of all layers
    before it. A tensor may have a second use, where more arrives: its own gradient counts, too.
    """
    largest = max(arriving.values(), default=0.0)
    own = arriving.get(name.rpartition(".")[0], math.inf)
    return own < VANISHING * largest and gradient < CANCELLED * largest


def _rounded_gradients(observations: Observations) -> set[str]:
    """Return the tensors whose gradient is mostly rounding error of autocast."""
    rounded: set[str] = set()
    for run in observations.runs:
        for name, error in run.rounding.items():
            if error > ROUNDED:
                rounded.add(observations.key(name))
    return rounded


def _gradient_cancels(observations: Observations, name: str) -> bool:
    """Return whether the gradient of a bias cancels over tokens.

    This happens to a bias before batch norm: the gradients at the output add up to zero, where a
    random sum of N entries has sqrt(N) times their size.
    """
    module, _, tensor = name.rpartition(".")
    gradients = observations.at(name, Quantity.GRADIENT, 0)
    if tensor != "bias" or not gradients:
        return False
    arriving = observations.at(module, Quantity.OUTPUT_GRADIENT, 0)
    for run, gradient in gradients.items():
        if run not in arriving:
            return False
        terms = arriving[run].entries / gradient.entries
        if not gradient.rms < CANCELLED * arriving[run].rms * math.sqrt(terms):
            return False
    return True
