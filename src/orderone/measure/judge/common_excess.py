"""Judge what all tensors have in common: an excess of their updates, or of their gradients.

Clipping, eps and a factor in the loss move all tensors by the same power of the size.
"""

import math
from collections.abc import Iterator, Sequence

from orderone.measure.judge.expected_tensors import gradient
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.thresholds import COMMON, EXACT, ROUGH
from orderone.measure.judge.verdict import SYMBOLS, Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.quantities import Quantity

FEWEST = 3  # tensors with a common excess


def common_excess(
    study: StudyResult, facts: StudyFacts, lines: Sequence[Judgement]
) -> Iterator[Judgement]:
    """Judge the common excess of updates over what rates and gradients imply.

    Where the step follows the gradient, the gradient itself may be clipped already. This is a known
    number, without noise.
    """
    updates = []
    for line in lines:
        if line.quantity == Quantity.UPDATE:
            updates.append(line.exponent - line.predicted)
    if not updates or not study.in_width:
        return
    clipped = facts.clipping
    excess = _common_part(updates) + clipped
    verdict = Verdict.PASS
    cause = ""
    if abs(excess) > COMMON or abs(clipped) > EXACT:
        verdict = Verdict.FAIL
        cause = (
            f"updates of all tensors scale like {SYMBOLS[study.axis]}^{excess:+z.2f} times what"
            " their learning rates imply"
        )
    yield Judgement(
        "", Quantity.STEP, 0, excess, excess, excess, 0.0, verdict, cause, "", Reason.SETTING
    )


def common_gradient(
    study: StudyResult, facts: StudyFacts, vanishing: frozenset[str]
) -> Iterator[Judgement]:
    """Judge the common excess of all gradients, where steps follow them.

    The gradient of the model's output shows a factor of the loss, unless the output is the loss.
    """
    if facts.theory is None or not facts.follows_gradients or not study.in_width:
        return
    excess = _excess_of_gradients(facts, vanishing)
    verdict = Verdict.PASS
    cause = ""
    if abs(excess) > ROUGH:
        verdict = Verdict.FAIL
        cause = (
            f"gradients of all tensors scale like {SYMBOLS[study.axis]}^{excess:+z.2f} times those"
            " of the rule"
        )
    yield Judgement(
        "", Quantity.GRADIENT, 0, excess, excess, excess, 0.0, verdict, cause, "", Reason.SETTING
    )


def _excess_of_gradients(facts: StudyFacts, vanishing: frozenset[str]) -> float:
    """Return the common excess of the gradients of all tensors over those of the rule."""
    if facts.theory is None:
        return 0.0
    excess = []
    for name, measured in facts.measured_exponents(Quantity.GRADIENT).items():
        expected = gradient(facts, name, 0)
        if expected is None or math.isnan(expected.exponent) or name in vanishing:
            continue
        excess.append(measured - expected.exponent)
    return _common_part(excess)


def _common_part(excess: list[float]) -> float:
    """Return the number of smallest absolute value, if all have the same sign; otherwise 0."""
    if len(excess) < FEWEST or min(excess) < 0 < max(excess):
        return 0.0
    return min(excess, key=abs)
