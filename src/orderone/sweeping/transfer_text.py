"""Text of a transfer study: verdicts, best learning rate of every size, drift of every rule."""

import math
from typing import TYPE_CHECKING

from orderone.core.errors import InputError, code_of, hint_on_codes
from orderone.core.notebook import notebook_html
from orderone.core.text_table import text_table, wrapped
from orderone.sweeping.drift import UNKNOWN, Drift
from orderone.sweeping.optimum import ABOVE, BELOW, FLAT, INSIDE, NOWHERE, SINGLE, Optimum

if TYPE_CHECKING:
    from orderone.sweeping.transfer import Transfer

# by the code of the remedy
NEEDS = {
    "needs-more-sizes": "needs more {axis}s",
    "needs-more-rates": "needs more learning rates",
    "needs-more-seeds": "needs more seeds",
    "optimum-outside-grid": "needs a wider grid of learning rates",
    "equal-losses": "needs longer training or a wider grid of learning rates",
    "drift-too-uncertain": "needs more seeds, {axis}s or learning rates",
    "loss-rises": "none: the loss rises with {axis}",
    "history-too-short": "needs longer training",
    "no-learning-rate": "needs a best learning rate inside the grid, run with all {axis}s",
}


def render(study: "Transfer") -> str:
    """Return the whole study as text that fits 80 columns."""
    lines = wrapped(verdicts(study), indent=0)
    lines += wrapped(headline(study))
    for drift in study.drift.values():
        remedy = f"; {drift.remedy}" if drift.remedy else ""
        lines += wrapped(f"{drift.rule}: {drift.why}{remedy}")
    for note in study.notes:
        lines += wrapped(f"note: {note}")
    lines += ["", *text_table(optima_table(study))]
    if note := outside_note(study):
        lines += wrapped(note, indent=0)
    lines += ["", *text_table(drift_table(study))]
    lines += ["", *text_table(quality_table(study))]
    for sentence in collapse_sentences(study):
        lines += wrapped(sentence, indent=0)
    lines += hint_on_codes([*study.notes, *(drift.remedy for drift in study.drift.values())])
    return "\n".join(lines)


def notebook(study: "Transfer") -> str:
    """Return the whole study as HTML for notebooks."""
    notes = [headline(study)]
    for drift in study.drift.values():
        remedy = f"; {drift.remedy}" if drift.remedy else ""
        notes.append(f"{drift.rule}: {drift.why}{remedy}")
    notes += [*study.notes, *filter(None, [outside_note(study)]), *collapse_sentences(study)]
    tables = [optima_table(study), drift_table(study), quality_table(study)]
    return notebook_html(verdicts(study), tables, notes)


def verdicts(study: "Transfer") -> str:
    """Return the verdicts on all rules in one sentence."""
    sentences: list[str] = []
    for drift in study.drift.values():
        if drift.verdict != UNKNOWN:
            sentences.append(f"{drift.rule} {drift.verdict}")
            continue
        needs = NEEDS[code_of(drift.remedy) or ""].format(axis=study.axis)
        sentences.append(f"{drift.rule}: inconclusive ({needs})")
    return "; ".join(sentences)


def headline(study: "Transfer") -> str:
    """Return the optimizer, the sizes, and the numbers of learning rates and seeds."""
    sizes: set[int] = set()
    rates: set[int] = set()
    seeds: set[int] = set()
    for curves in study.curves.values():
        for curve in curves:
            sizes.add(curve.size)
            rates.add(curve.losses.shape[1])
            seeds.add(curve.losses.shape[0])
    size_text = ", ".join(str(size) for size in sorted(sizes))
    counts = f"{_counted(rates, 'learning rate')}, {_counted(seeds, 'seed')}"
    return f"{study.optimizer}, {study.axis}s {size_text}, {counts}"


def _counted(numbers: set[int], noun: str) -> str:
    """Return "1 seed", "3 seeds", or "2 to 3 seeds"."""
    if len(numbers) > 1:
        return f"{min(numbers)} to {max(numbers)} {noun}s"
    number = min(numbers)
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def optima_table(study: "Transfer") -> list[tuple[str, ...]]:
    """Return the rows of the table of best learning rates, the head first."""
    smallest = {optima[0].size for optima in study.optima.values()}
    if len(smallest) == 1:
        reference = f"{study.axis} {min(smallest)}"
    else:
        reference = f"the smallest {study.axis}"
    extra = f"extra loss with the best {study.setting} of {reference}"
    rows = [("rule", study.axis, f"best {study.setting}", "loss", extra)]
    for rule in study.rules:
        for k, best in enumerate(study.optima[rule]):
            cost = "" if k == 0 else _cost(study.regret(rule, k))
            rows.append((rule, str(best.size), rate(best), f"{best.loss:.4g}", cost))
    return rows


def outside_note(study: "Transfer") -> str:
    """Return the meaning of < and > in intervals; nothing if no interval has them."""
    for optima in study.optima.values():
        if any(best.open_below or best.open_above for best in optima):
            return "< and >: the interval reaches outside the grid; add seeds or a wider grid"
    return ""


def _cost(regret: float) -> str:
    if math.isnan(regret):
        return "-"
    if math.isinf(regret):
        return "diverges"
    return f"+{regret:.2g}"


def rate(best: Optimum) -> str:
    """Return `0.0041 [0.0036, 0.0047]`, or the reason why there is no best learning rate."""
    if best.beyond == INSIDE:
        if math.isinf(best.low):
            return f"{best.lr:.3g}"
        below = "<" if best.open_below else ""
        above = ">" if best.open_above else ""
        return f"{best.lr:.3g} [{below}{2**best.low:.3g}, {above}{2**best.high:.3g}]"
    reasons = {
        BELOW: f"below the grid (< {2**best.high:.3g})",
        ABOVE: f"above the grid (> {2**best.low:.3g})",
        NOWHERE: "none: all diverged",
        FLAT: "none: all losses are equal",
        SINGLE: "none: only one lr was run",
    }
    return reasons[best.beyond]


def drift_table(study: "Transfer") -> list[tuple[str, ...]]:
    """Return the rows of the table of drifts, the head first."""
    rows = [("rule", f"drift (octaves of {study.setting} per doubling)", "predicted", "verdict")]
    for drift in study.drift.values():
        rows.append((drift.rule, slope(drift), predicted(drift), drift.verdict))
    return rows


def slope(drift: Drift) -> str:
    """Return `+0.01 [-0.06, +0.07]`: the drift and its interval."""
    if math.isnan(drift.slope):
        return "-"
    if math.isinf(drift.low):
        return f"{drift.slope:+z.2f}"
    return f"{drift.slope:+z.2f} [{drift.low:+z.2f}, {drift.high:+z.2f}]"


def predicted(drift: Drift) -> str:
    """Return `-1 to -1.5`: the predicted drifts for full and worst alignment."""
    full, worst = drift.predicted
    if math.isnan(full):
        return "-"
    if full == worst:
        return f"{full:g}"
    return f"{full:g} to {worst:g}"


def quality_table(study: "Transfer") -> list[tuple[str, ...]]:
    """Return the rows of the table of fits and forecasts, the head first."""
    largest = max(optima[-1].size for optima in study.optima.values())
    head = (
        "rule",
        f"scatter of the best {study.setting}, octaves",
        f"{study.setting} of the largest {study.axis}, predicted from the others: error in"
        " octaves, extra loss",
        f"loss forecast for {study.axis} {2 * largest}",
    )
    rows: list[tuple[str, ...]] = [head]
    for record in study.quality.to_dict("records"):
        rule = str(record["rule"])
        scatter = _octaves(float(record["scatter"]))
        left_out = _left_out(float(record["left_out"]), float(record["left_out_cost"]))
        rows.append((rule, scatter, left_out, _forecast(study, rule)))
    return rows


def _octaves(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _left_out(octaves: float, cost: float) -> str:
    """Return `+0.05, +0.001`: the error in octaves, and its cost."""
    if math.isnan(octaves):
        return "-"
    return f"{octaves:+z.2f}, {_cost(cost)}"


def _forecast(study: "Transfer", rule: str) -> str:
    """Return `1.9 [1.87, 1.93]` for twice the largest size, or what is missing."""
    largest = max(optima[-1].size for optima in study.optima.values())
    size = {study.axis: 2 * largest}
    try:
        expected = study.forecast(rule=rule, **size)
    except InputError as error:
        return _needs(study, error)
    return f"{expected.loss:.4g} [{expected.low:.4g}, {expected.high:.4g}]"


def _needs(study: "Transfer", error: InputError) -> str:
    return NEEDS[error.code].format(axis=study.axis)


def collapse_sentences(study: "Transfer") -> list[str]:
    """Return the verdicts on the loss curves of all rules; none without loss curves."""
    if not study.histories:
        return []
    sentences: list[str] = []
    for rule in study.rules:
        try:
            sentences.append(study.collapse(rule=rule).sentence)
        except InputError as error:
            sentences.append(f"{rule}: loss curves not compared ({_needs(study, error)})")
    return sentences
