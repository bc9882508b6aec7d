"""Failed lines of a check: which quantity, which direction, and their names in a sentence."""

import math
from collections.abc import Collection, Sequence

from orderone.measure.judge.verdict import Judgement, Reason
from orderone.observe.quantities import Quantity

ACTIVATIONS = (Quantity.CHANGE, Quantity.OUTPUT)
FORWARD = (*ACTIVATIONS, Quantity.SCORE_CHANGE)

Failed = Sequence[Judgement]


def select(lines: Failed, quantities: Collection[Quantity], role: str = "") -> list[Judgement]:
    """Return the lines of these quantities, and of one role if it is not empty."""
    selected = [line for line in lines if line.quantity in quantities]
    if role:
        return [line for line in selected if line.role == role]
    return selected


def is_small(line: Judgement) -> bool:
    if line.exponent > line.bound:
        return False
    return line.reason == Reason.SHRINKS or line.exponent < line.predicted


def fastest_of(lines: Failed) -> Judgement:
    fitted = [line for line in lines if not math.isnan(line.exponent)]
    return max(fitted, key=lambda line: line.exponent, default=lines[0])


def name_of(line: Judgement) -> str:
    return f"the {line.quantity} of {quoted(line.module)}"


def quoted(module: str) -> str:
    """Return a module's name as words; quotes make clear that `4` is a name."""
    if not module:
        return "the model"
    return f"module {module!r}"


def names_of(lines: Failed) -> str:
    names = list(dict.fromkeys(line.module or "the model" for line in lines))
    if len(names) > 2:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return ", ".join(names)
