"""From verdicts to words: what is likely wrong, the most specific first."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from orderone.core.roles import Role
from orderone.measure.judge.verdict import Judgement, Verdict
from orderone.observe.quantities import UPDATES, Quantity

ACTIVATIONS = (Quantity.CHANGE, Quantity.OUTPUT)
FORWARD = (*ACTIVATIONS, Quantity.SCORE_CHANGE)
MOST_FROZEN = 3  # tensors that never move, in a list of causes
# by role, in the order in which they are reported
WRONG_UPDATES = {
    Role.EMBEDDING: "embedding learning rate",
    Role.HIDDEN: "hidden learning rate",
    Role.READOUT: "readout not scaled",
    Role.FIXED: "learning rate",
    Role.VECTOR: "learning rate of biases and gains",
}


@dataclass(frozen=True)
class Context:
    """Facts about the study beside the verdicts."""

    rule: str
    tied: bool = False
    no_growth: bool = False  # every size gives the same shapes
    base_is_target: bool = False  # a plan whose factors are all 1
    schedule: str = ""  # the problem that plan.check has found
    undone: Sequence[str] = ()  # what the plan asks for and cannot do by itself
    in_depth: bool = False  # the models differ in depth
    unscaled_branches: bool = False  # residual branches that nothing scales with depth
    one_rate: bool = False  # one learning rate for everything, where the rule has several
    # exponents of a tensor's initial size, measured and expected: AdjustedExpectations.wrong_start
    wrong_start: Callable[[str, Quantity, float], tuple[float, float] | None] = (
        lambda name, quantity, exponent: None
    )
    # whether a tensor's learning rates scale as the rule asks
    rate_is_right: Callable[[str], bool] = lambda name: False


def likely_causes(judgements: Sequence[Judgement], context: Context) -> list[str]:
    """Return the likely causes of all failures; earlier kinds of causes explain later ones."""
    failed = [line for line in judgements if line.verdict == Verdict.FAIL]
    causes = _faults_of_the_whole(failed, context) + _frozen_tensors(failed)
    if not causes:
        causes += _wrong_rates(failed, context)
        causes += _small_gradients(failed, context)
        if not context.in_depth:
            causes += _attention_scale(failed)
        causes += _initial_sizes(failed, context)
        causes += _weight_decay(failed)
    if not causes and failed:
        causes = [_activations(failed, context)]
    return list(dict.fromkeys(causes))


def _faults_of_the_whole(failed: Sequence[Judgement], context: Context) -> list[str]:
    """Return faults that show everywhere at once and hide all others."""
    if context.no_growth:
        return [
            "base equals target: every size gives a model of the same shapes; does build use its"
            " argument?"
        ]
    if context.base_is_target:
        return [
            "base equals target: every factor of the plan is 1; give the same, smaller base at"
            " every size"
        ]
    if context.schedule:
        return [f"schedule: {context.schedule}"]
    wrong_updates = _select(failed, UPDATES)
    if context.undone and not wrong_updates and _select(failed, FORWARD):
        return [f"left to you: {task}" for task in context.undone]
    if context.unscaled_branches and _select(failed, ACTIVATIONS):
        return [
            "residual branches are not scaled with depth: give depth='sqrt' or depth='completep'"
        ]
    predicted = [
        line for line in failed if "rule itself" in line.cause and line.role != "attention"
    ]
    if predicted and not wrong_updates:
        worst = max(predicted, key=lambda line: line.exponent)
        return [
            f"the rule itself: {context.rule} lets {_name(worst)} grow (theory"
            f" n^{worst.predicted:+.2f}, measured n^{worst.exponent:+.2f}); mup keeps it of"
            " order one"
        ]
    may_be_standard = not context.in_depth and context.rule != "standard"
    if failed and may_be_standard and (context.one_rate or _updates_of_one_rate(failed)):
        return [
            f"standard parameterization, not {context.rule}: updates are as large in wide models as"
            " in narrow ones (one learning rate for everything)"
        ]
    return []


def _updates_of_one_rate(failed: Sequence[Judgement]) -> bool:
    """Return whether updates are off by the power of n by which one rate for all is off."""
    excess = {line.role: line.exponent - line.predicted for line in _select(failed, UPDATES)}
    return excess.get(Role.HIDDEN, 0.0) > 0.75 and Role.READOUT in excess


def _frozen_tensors(failed: Sequence[Judgement]) -> list[str]:
    frozen = [line for line in failed if line.cause.startswith("frozen")]
    return [f"{line.module}: {line.cause}" for line in frozen[:MOST_FROZEN]]


def _wrong_rates(failed: Sequence[Judgement], context: Context) -> list[str]:
    unexplained: dict[str, list[Judgement]] = {}
    for line in _select(failed, UPDATES):
        if not _wrong_start(line, context) and not _has_small_gradient(line, context):
            unexplained.setdefault(line.role, []).append(line)
    causes = []
    for role, fault in WRONG_UPDATES.items():
        if role not in unexplained:
            continue
        lines = unexplained[role]
        tied = "tied weights: " if context.tied and role == Role.EMBEDDING else ""
        causes.append(
            f"{tied}{fault}: updates of {_names(lines)} scale like n^{lines[0].exponent:+.2f}, and"
            f" {context.rule} asks for n^{lines[0].predicted:+.2f}"
        )
    return causes


def _wrong_start(line: Judgement, context: Context) -> tuple[float, float] | None:
    """Return the exponents of the initial size if they explain a wrong update."""
    if line.quantity in UPDATES:
        return context.wrong_start(line.module, line.quantity, line.exponent)
    return None


def _has_small_gradient(line: Judgement, context: Context) -> bool:
    """Return whether updates are too small although the learning rate is right."""
    too_small = line.quantity in UPDATES and line.exponent < line.predicted
    return too_small and context.rate_is_right(line.module)


def _small_gradients(failed: Sequence[Judgement], context: Context) -> list[str]:
    lines = []
    for line in failed:
        if _has_small_gradient(line, context) and not _wrong_start(line, context):
            lines.append(line)
    if not lines:
        return []
    return [
        f"small gradients: updates of {_names(lines)} scale like n^{lines[0].exponent:+.2f}, not"
        f" n^{lines[0].predicted:+.2f}, though their learning rates scale as they should: eps is"
        " not small beside the gradients (give a smaller one), or they are clipped"
    ]


def _attention_scale(failed: Sequence[Judgement]) -> list[str]:
    """Report scores that grow, unless a matrix inside the module learns too fast."""
    too_fast = []
    for line in _select(failed, UPDATES):
        if line.exponent > line.predicted:
            too_fast.append(f".{line.module}")
    lines = []
    for line in failed:
        prefix = f".{line.module}." if line.module else "."
        inside = any(name.startswith(prefix) for name in too_fast)
        if line.role == "attention" and not inside:
            lines.append(line)
    if not lines:
        return []
    return [
        f"attention scale: scores of {_names(lines)} grow like n^{lines[0].exponent:+.2f}; divide"
        " queries times keys by the head size, not by its root"
    ]


def _initial_sizes(failed: Sequence[Judgement], context: Context) -> list[str]:
    """Report, by role, wrong initial sizes of weights and outputs, and those that updates show."""
    by_role: dict[str, list[tuple[str, float, float]]] = {}
    for line in failed:
        exponents = _wrong_start(line, context)
        if line.quantity in (Quantity.WEIGHT, Quantity.OUTPUT) and line.step == 0:
            exponents = (line.exponent, line.predicted)
        if exponents:
            name = line.module or "the model"
            by_role.setdefault(line.role, []).append((name, *exponents))
    causes = []
    for role, starts in by_role.items():
        fault = "readout not scaled: " if role == Role.READOUT else ""
        names = _join([name for name, _, _ in starts])
        _, measured, expected = starts[0]
        causes.append(
            f"{fault}initial size of {names}: n^{measured:+.2f}, and {context.rule} asks for"
            f" n^{expected:+.2f}"
        )
    return causes


def _weight_decay(failed: Sequence[Judgement]) -> list[str]:
    penalties = _select(failed, (Quantity.PENALTY,))
    if penalties:
        return [
            f"weight decay: the penalty of {_names(penalties)}, which is normalized together with"
            f" the gradient, grows beside it like n^{penalties[0].exponent:+.2f}; let weight_decay"
            " go like the gradient over the weight, or decay apart from it (AdamW)"
        ]
    # a wrong learning rate also makes the decay wrong
    wrong_updates = {line.module for line in _select(failed, UPDATES)}
    decays = []
    for line in _select(failed, (Quantity.DECAY,)):
        if line.module not in wrong_updates:
            decays.append(line)
    if not decays:
        return []
    return [
        f"weight decay: a step shrinks {_names(decays)} by a fraction that scales like"
        f" n^{decays[0].exponent:+.2f}; keep lr * weight_decay the same at every size"
        " (decay='independent')"
    ]


def _activations(failed: Sequence[Judgement], context: Context) -> str:
    """Describe the failed activations where nothing else explains them."""
    first = failed[0]
    if all(line.exponent < line.predicted for line in failed):
        return (
            f"{_name(first)} shrinks (n^{first.exponent:+.2f}), more than its readout lacks"
            " alignment: something divides it"
        )
    if context.in_depth and len(_select(failed, FORWARD)) == len(failed):
        return (
            f"residual branches are not scaled with depth: {_name(first)} grows like"
            f" n^{first.exponent:+.2f}; multiply what every branch adds by 1/sqrt(L) or 1/L"
        )
    fitted = [line for line in failed if not math.isnan(line.exponent)]
    fastest = max(fitted, key=lambda line: line.exponent, default=first)
    roles = {line.role for line in failed if line.role}
    if roles == {Role.READOUT}:
        return f"readout not scaled: {_name(fastest)} grows like n^{fastest.exponent:+.2f}"
    return (
        f"{_name(first)} is the first to grow (n^{first.exponent:+.2f}), {_name(fastest)} the"
        f" fastest (n^{fastest.exponent:+.2f}): look at what the forward code multiplies there"
    )


def _select(lines: Sequence[Judgement], quantities: Collection[Quantity]) -> list[Judgement]:
    return [line for line in lines if line.quantity in quantities]


def _name(line: Judgement) -> str:
    return f"the {line.quantity} of {line.module or 'the model'}"


def _names(lines: Sequence[Judgement]) -> str:
    return _join([line.module or "the model" for line in lines])


def _join(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    if len(names) > 2:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return ", ".join(names)
