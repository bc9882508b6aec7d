"""Explain lines of a check: prediction, measurement, interval, threshold, and the theory behind."""

import math
from collections.abc import Sequence

from orderone.core.errors import InputError
from orderone.core.text_table import wrapped
from orderone.measure.judge.quantities import JUDGE, row_of
from orderone.measure.judge.thresholds import THRESHOLDS
from orderone.measure.judge.verdict import SYMBOLS, Judgement, Reason


def explanation(judgements: Sequence[Judgement], name: str, rule: str, axis: str) -> str:
    """Return the text about a module or tensor, and about everything inside it."""
    lines = [line for line in judgements if line.module == name]
    if name:
        lines += [line for line in judgements if line.module.startswith(f"{name}.")]
    if not lines:
        known = list(dict.fromkeys(line.module for line in judgements if line.module))
        message = (
            f"name: no line of this check is about {name!r}; there are lines about"
            f" {', '.join(known[:5])}, ... (the column module of check.exponents has all)"
        )
        raise InputError(message, argument="name")
    return "\n".join(text for line in lines for text in _about(line, rule, axis))


def _about(line: Judgement, rule: str, axis: str) -> list[str]:
    row = row_of(line.quantity, line.step, of_study=not line.module)
    size = SYMBOLS[axis]
    subject = line.module or "the model"
    texts = [f"{subject}: {line.quantity}, step {line.step}: {line.verdict}"]
    details = [f"measured: {row.measured}"]
    if not math.isnan(line.exponent):
        interval = f"interval {line.low:+z.2f} to {line.high:+z.2f}"
        if row.kind == "exact":
            interval = "a known number"
        details.append(f"exponent of {size}: {line.exponent:+z.2f} ({interval})")
    prediction = f"prediction ({rule}): {_allowed(line, size)}: {row.prediction}"
    if line.reason == Reason.PREDICTED_GROWTH:
        prediction = (
            f"prediction ({rule}): {size}^{line.predicted:+z.2f}, which is growth; allowed:"
            f" {_allowed(line, size)}: {row.prediction}"
        )
    details.append(prediction)
    if line.parts and math.isfinite(line.least):
        details.append(f"lower end: {size}^{line.least:+z.2f} = {_sum_of_parts(line)}")
    for name in row.tolerance:
        threshold = THRESHOLDS[name]
        details.append(f"threshold {threshold.value:g}: {threshold.meaning}")
        details.append(f"  why: {threshold.reason}")
    details.append(f"theory: {row.source}")
    details.append(f"code in {JUDGE}: {', '.join(row.code)}")
    if line.cause:
        details.append(f"because: {line.cause}")
    for detail in details:
        texts += wrapped(detail)
    return texts


def _sum_of_parts(line: Judgement) -> str:
    """Return the sum that gives the lower end: `+0.00 (of the rule) - 0.12 (...)`."""
    (what, largest), *smaller = line.parts
    text = f"{largest:+z.2f} ({what})"
    for what, power in smaller:
        if power:
            text += f" - {power:.2f} ({what})"
    return text


def _allowed(line: Judgement, size: str) -> str:
    """Return the allowed exponents in words."""
    ends = []
    if math.isfinite(line.least):
        ends.append(f"at least {size}^{line.least:+z.2f}")
    if math.isfinite(line.bound):
        ends.append(f"at most {size}^{line.bound:+z.2f}")
    if not ends and not math.isnan(line.predicted):
        ends.append(f"{size}^{line.predicted:+z.2f}")
    return " and ".join(ends) or "no dependence on the size"
