"""Trained tensors whose learning rate no line of a check judges."""

from collections.abc import Sequence

from orderone.core.errors import with_code
from orderone.measure.judge.verdict import Judgement, Reason
from orderone.measure.observations import StudyResult
from orderone.observe.inventory import inventory
from orderone.observe.quantities import Quantity

MOST_NAMES = 3  # names in a note


def unjudged_tensors(study: StudyResult, lines: Sequence[Judgement]) -> tuple[str, ...]:
    """Return the trained tensors whose learning rate no line judges."""
    judged = {line.module for line in lines if line.quantity == Quantity.RATE}
    judged |= {line.module for line in lines if line.reason == Reason.FROZEN}
    observations = study.observations
    unjudged: dict[str, None] = {}
    for name, item in inventory(study.largest).items():
        key = observations.key(name)
        moved = observations.largest(key, Quantity.UPDATE) > 0
        if item.tensor.requires_grad and moved and key not in judged:
            unjudged[key] = None
    return tuple(unjudged)


def note_on_unjudged(unjudged: tuple[str, ...]) -> str:
    names = ", ".join(unjudged[:MOST_NAMES])
    if len(unjudged) > MOST_NAMES:
        names = f"{names} and {len(unjudged) - MOST_NAMES} more"
    note = f"this check did not judge the learning rate of {names}; check.unjudged lists all"
    return with_code(note, "unjudged-tensors")
