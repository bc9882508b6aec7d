"""From verdicts to words: what is likely wrong with a model, the most specific causes first.

The tables at the end list all causes. Each has a code, which `orderone.core.codes` explains, and a
function that returns its sentences, none where the cause does not apply.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.measure.judge.expectations import AdjustedExpectations
from orderone.measure.judge.verdict import BOUNDARY, SYMBOLS, Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.inventory import inventory
from orderone.observe.quantities import UPDATES, Quantity
from orderone.optimizers.table import record_named

ACTIVATIONS = (Quantity.CHANGE, Quantity.OUTPUT)
FORWARD = (*ACTIVATIONS, Quantity.SCORE_CHANGE)
MOST_FROZEN = 3  # frozen tensors in a list of causes


# --- facts about the study ------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """Facts about the study beside the verdicts."""

    rule: str
    axis: str = "width"
    tied: bool = False
    no_growth: bool = False  # every size gives the same shapes
    base_is_target: bool = False  # a plan whose factors are all 1
    schedule_fault: str = ""  # empty if the schedule is right
    undone: Sequence[str] = ()  # changes that the plan leaves to the model's code
    unscaled_branches: bool = False  # residual branches that nothing scales with depth
    one_rate: bool = False  # one learning rate for everything, where the rule has several
    expectations: AdjustedExpectations | None = None

    @property
    def in_depth(self) -> bool:
        """True if the models differ in depth."""
        return self.axis == "depth"

    def power(self, exponent: float) -> str:
        """Return a power of the size in words: `n^+0.50`."""
        return f"{SYMBOLS[self.axis]}^{exponent:+.2f}"

    def wrong_start(self, line: Judgement) -> tuple[float, float] | None:
        """Return the measured and the expected exponent of a tensor's initial size.

        Return None unless the line is an update that is wrong only because of that size.
        """
        if line.quantity not in UPDATES or self.expectations is None:
            return None
        theory = self.expectations.theory
        if theory is None or line.module not in theory.rows:
            return None
        starts = self.expectations.measured_exponents(Quantity.WEIGHT)
        start = starts.get(line.module, math.nan)
        expected_start = theory.expect(line.module, Quantity.WEIGHT).exponent
        update = theory.expect(line.module, Quantity.UPDATE).exponent
        if line.quantity == Quantity.RELATIVE_UPDATE:
            excess = start + line.exponent - update
        elif record_named(theory.rows[line.module][1].optimizer).update_law.weight:
            # Adafactor's steps are as large as the tensor is
            excess = line.exponent - update - (start - expected_start)
        else:
            return None
        if abs(excess) < BOUNDARY:
            return start, expected_start
        return None

    def has_small_gradient(self, line: Judgement) -> bool:
        """Return whether updates are too small although the learning rate is right."""
        if line.quantity not in UPDATES or self.expectations is None:
            return False
        return line.exponent < line.predicted and self.expectations.rate_is_right(line.module)


def read_context(study: StudyResult, expectations: AdjustedExpectations, fault: str) -> Context:
    """Gather the facts of a study; `fault` is what is wrong with its schedule."""
    return Context(
        rule=study.rule,
        axis=study.axis,
        tied=any(len(item.places) > 1 for item in inventory(study.largest).values()),
        no_growth=study.no_growth,
        base_is_target=_base_is_target(study),
        schedule_fault=fault,
        undone=study.undone,
        unscaled_branches=_has_unscaled_branches(study),
        one_rate=_has_one_rate(study),
        expectations=expectations,
    )


def _base_is_target(study: StudyResult) -> bool:
    if study.user_plan is None or study.no_growth:
        return False
    return all(row.shape == row.base_shape for row in study.user_plan.rows)


def _has_one_rate(study: StudyResult) -> bool:
    """Return whether one learning rate is used everywhere, where the rule has several."""
    if not study.has_user_optimizer or not study.plans:
        return False
    rates = set()
    for run in study.observations.runs:
        for first_rates in run.rates[:1]:
            rates.update(first_rates.values())
    planned = {row.lr for row in study.plans[study.sizes[-1]].rows}
    return len(rates) == 1 and len(planned) > 1


def _has_unscaled_branches(study: StudyResult) -> bool:
    if study.axis != "depth" or study.family is None or study.depth_rule is not None:
        return False
    return bool(study.family.facts.branches)


# --- faults that show everywhere at once ----------------------------------------------------------


def _same_shapes(failed: Sequence[Judgement], context: Context) -> list[str]:
    if not context.no_growth:
        return []
    return [
        "base equals target: build returns a model of the same shapes at every size; does it"
        " use its argument?"
    ]


def _base_equals_target(failed: Sequence[Judgement], context: Context) -> list[str]:
    if not context.base_is_target:
        return []
    return [
        "base equals target: every factor of the plan is 1; use the same, smaller base at every"
        " size"
    ]


def _broken_schedule(failed: Sequence[Judgement], context: Context) -> list[str]:
    if not context.schedule_fault:
        return []
    return [f"schedule: {context.schedule_fault}"]


def _unfinished_plan(failed: Sequence[Judgement], context: Context) -> list[str]:
    """Name the tasks that the plan leaves to the model's code, if they explain the failures."""
    if _select(failed, UPDATES) or not _select(failed, FORWARD):
        return []
    return [f"the plan leaves this to you: {task}" for task in context.undone]


def _unscaled_branches(failed: Sequence[Judgement], context: Context) -> list[str]:
    if not context.unscaled_branches or not _select(failed, ACTIVATIONS):
        return []
    return ["residual branches are not scaled with depth: pass depth='sqrt' or depth='completep'"]


def _growth_that_the_rule_predicts(failed: Sequence[Judgement], context: Context) -> list[str]:
    predicted = []
    for line in failed:
        if line.reason == Reason.PREDICTED_GROWTH and line.role != "attention":
            predicted.append(line)
    if not predicted or _select(failed, UPDATES):
        return []
    worst = max(predicted, key=lambda line: line.exponent)
    return [
        f"the rule itself: {context.rule} predicts that {_name(worst)} grows (theory"
        f" {context.power(worst.predicted)}, measured {context.power(worst.exponent)}); mup keeps"
        " it of order one"
    ]


def _standard_parameterization(failed: Sequence[Judgement], context: Context) -> list[str]:
    if not failed or context.in_depth or context.rule == "standard":
        return []
    if not context.one_rate and not _updates_of_one_rate(failed):
        return []
    return [
        f"standard parameterization, not {context.rule}: updates are as large in wide models as in"
        " narrow ones (one learning rate for everything)"
    ]


def _updates_of_one_rate(failed: Sequence[Judgement]) -> bool:
    """Return whether updates are off by the power of n by which one rate for all is off."""
    excess = {line.role: line.exponent - line.predicted for line in _select(failed, UPDATES)}
    return excess.get(Role.HIDDEN, 0.0) > 0.75 and Role.READOUT in excess


def _frozen_tensors(failed: Sequence[Judgement], context: Context) -> list[str]:
    frozen = [line for line in failed if line.reason == Reason.FROZEN]
    return [f"{line.module}: {line.cause}" for line in frozen[:MOST_FROZEN]]


# --- faults of some tensors -----------------------------------------------------------------------


def _wrong_rates(
    role: Role, fault: str, failed: Sequence[Judgement], context: Context
) -> list[str]:
    """Report wrong updates of one role that neither initial sizes nor gradients explain."""
    lines = []
    for line in _select(failed, UPDATES):
        explained = context.wrong_start(line) or context.has_small_gradient(line)
        if line.role == role and not explained:
            lines.append(line)
    if not lines:
        return []
    tied = ""
    if context.tied and role == Role.EMBEDDING:
        tied = "tied weights: "
    return [
        f"{tied}{fault}: updates of {_names(lines)} scale like {context.power(lines[0].exponent)};"
        f" {context.rule} requires {context.power(lines[0].predicted)}"
    ]


def _small_gradients(failed: Sequence[Judgement], context: Context) -> list[str]:
    lines = []
    for line in failed:
        if context.has_small_gradient(line) and not context.wrong_start(line):
            lines.append(line)
    if not lines:
        return []
    return [
        f"small gradients: updates of {_names(lines)} scale like"
        f" {context.power(lines[0].exponent)} instead of {context.power(lines[0].predicted)},"
        " although their learning rates scale correctly: eps is not small compared with the"
        " gradients (choose a smaller one), or gradients are clipped"
    ]


def _attention_scale(failed: Sequence[Judgement], context: Context) -> list[str]:
    """Report scores that grow, unless a matrix inside the module learns too fast."""
    if context.in_depth:
        return []
    too_fast = []
    for line in _select(failed, UPDATES):
        if line.exponent > line.predicted:
            too_fast.append(f".{line.module}")
    lines = []
    for line in failed:
        prefix = "."
        if line.module:
            prefix = f".{line.module}."
        inside = any(name.startswith(prefix) for name in too_fast)
        if line.role == "attention" and not inside:
            lines.append(line)
    if not lines:
        return []
    return [
        f"attention scale: scores of {_names(lines)} grow like"
        f" {context.power(lines[0].exponent)}; divide queries times keys by the head size, not by"
        " its square root"
    ]


def _initial_sizes(failed: Sequence[Judgement], context: Context) -> list[str]:
    """Report wrong initial sizes of all roles but the readout, role by role."""
    causes = []
    for role, starts in _wrong_starts(failed, context).items():
        if role != Role.READOUT:
            causes.append(_start_in_words(starts, context))
    return causes


def _initial_readouts(failed: Sequence[Judgement], context: Context) -> list[str]:
    """Report wrong initial sizes of readouts."""
    starts = _wrong_starts(failed, context).get(Role.READOUT)
    if not starts:
        return []
    return [f"readout not scaled: {_start_in_words(starts, context)}"]


class _WrongStart(NamedTuple):
    name: str
    measured: float
    expected: float


def _wrong_starts(failed: Sequence[Judgement], context: Context) -> dict[str, list[_WrongStart]]:
    """Return, by role, wrong initial sizes of weights and outputs, and those that updates show."""
    by_role: dict[str, list[_WrongStart]] = {}
    for line in failed:
        exponents = context.wrong_start(line)
        if line.quantity in (Quantity.WEIGHT, Quantity.OUTPUT) and line.step == 0:
            exponents = (line.exponent, line.predicted)
        if exponents:
            start = _WrongStart(line.module or "the model", *exponents)
            by_role.setdefault(line.role, []).append(start)
    return by_role


def _start_in_words(starts: list[_WrongStart], context: Context) -> str:
    names = _join([start.name for start in starts])
    return (
        f"initial size of {names} scales like {context.power(starts[0].measured)};"
        f" {context.rule} requires {context.power(starts[0].expected)}"
    )


def _weight_decay(failed: Sequence[Judgement], context: Context) -> list[str]:
    penalties = _select(failed, (Quantity.PENALTY,))
    if penalties:
        return [
            f"weight decay: the penalty of {_names(penalties)} is normalized together with the"
            f" gradient, and grows relative to it like {context.power(penalties[0].exponent)};"
            " scale weight_decay like gradient / weight, or use decoupled weight decay (AdamW)"
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
        f" {context.power(decays[0].exponent)}; keep lr * weight_decay the same at every size"
        " (decay='independent')"
    ]


# --- activations, where nothing else explains them ------------------------------------------------


def _shrinking_output(failed: Sequence[Judgement], context: Context) -> list[str]:
    first = failed[0]
    if not all(line.exponent < line.predicted for line in failed):
        return []
    return [
        f"{_name(first)} shrinks ({context.power(first.exponent)}) by more than the alignment of"
        " its readout explains: look for a division in the forward code"
    ]


def _growing_branches(failed: Sequence[Judgement], context: Context) -> list[str]:
    if not context.in_depth or len(_select(failed, FORWARD)) < len(failed):
        return []
    return [
        f"residual branches are not scaled with depth: {_name(failed[0])} grows like"
        f" {context.power(failed[0].exponent)}; multiply what every branch adds by 1/sqrt(L) or"
        " 1/L"
    ]


def _growing_readout(failed: Sequence[Judgement], context: Context) -> list[str]:
    roles = {line.role for line in failed if line.role}
    if roles != {Role.READOUT}:
        return []
    fastest = _fastest(failed)
    return [f"readout not scaled: {_name(fastest)} grows like {context.power(fastest.exponent)}"]


def _growing_activations(failed: Sequence[Judgement], context: Context) -> list[str]:
    first = failed[0]
    fastest = _fastest(failed)
    return [
        f"{_name(first)} is the first to grow ({context.power(first.exponent)}), {_name(fastest)}"
        f" grows fastest ({context.power(fastest.exponent)}): look at what the forward code"
        " multiplies there"
    ]


def _fastest(failed: Sequence[Judgement]) -> Judgement:
    fitted = [line for line in failed if not math.isnan(line.exponent)]
    return max(fitted, key=lambda line: line.exponent, default=failed[0])


# --- names ----------------------------------------------------------------------------------------


def _select(lines: Sequence[Judgement], quantities: Collection[Quantity]) -> list[Judgement]:
    return [line for line in lines if line.quantity in quantities]


def _name(line: Judgement) -> str:
    return f"the {line.quantity} of {_quoted(line.module)}"


def _quoted(module: str) -> str:
    """Return a module's name as words; quotes make clear that `4` is a name."""
    if not module:
        return "the model"
    return f"module {module!r}"


def _names(lines: Sequence[Judgement]) -> str:
    return _join([line.module or "the model" for line in lines])


def _join(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    if len(names) > 2:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return ", ".join(names)


# --- the tables -----------------------------------------------------------------------------------


class Cause(NamedTuple):
    """A kind of cause: its code, and its sentences about the failed lines."""

    code: str
    explain: Callable[[Sequence[Judgement], Context], list[str]]


# the first that applies explains everything
EVERYWHERE = (
    Cause("same-shapes", _same_shapes),
    Cause("base-equals-target", _base_equals_target),
    Cause("broken-schedule", _broken_schedule),
    Cause("unfinished-plan", _unfinished_plan),
    Cause("unscaled-branches", _unscaled_branches),
    Cause("rule-predicts-growth", _growth_that_the_rule_predicts),
    Cause("standard-parameterization", _standard_parameterization),
)
# in addition
FROZEN = (Cause("frozen-tensor", _frozen_tensors),)
# all that apply, where none of the above does
OF_TENSORS = (
    Cause("lr-not-scaled", partial(_wrong_rates, Role.EMBEDDING, "embedding learning rate")),
    Cause("lr-not-scaled", partial(_wrong_rates, Role.HIDDEN, "hidden learning rate")),
    Cause("readout-not-scaled", partial(_wrong_rates, Role.READOUT, "readout not scaled")),
    Cause("lr-not-scaled", partial(_wrong_rates, Role.FIXED, "learning rate")),
    Cause("lr-not-scaled", partial(_wrong_rates, Role.VECTOR, "learning rate of biases and gains")),
    Cause("small-gradients", _small_gradients),
    Cause("attention-not-scaled", _attention_scale),
    Cause("wrong-initial-size", _initial_sizes),
    Cause("readout-not-scaled", _initial_readouts),
    Cause("decay-not-scaled", _weight_decay),
)
# the first that applies, where none of the above does
OF_ACTIVATIONS = (
    Cause("shrinking-output", _shrinking_output),
    Cause("unscaled-branches", _growing_branches),
    Cause("readout-not-scaled", _growing_readout),
    Cause("growing-activations", _growing_activations),
)


def likely_causes(judgements: Sequence[Judgement], context: Context) -> list[str]:
    """Return the likely causes of all failures, each with its code at the end."""
    failed = [line for line in judgements if line.verdict == Verdict.FAIL]
    causes = _first(EVERYWHERE, failed, context) + _all(FROZEN, failed, context)
    if not causes:
        causes = _all(OF_TENSORS, failed, context)
    if not causes and failed:
        causes = _first(OF_ACTIVATIONS, failed, context)
    return list(dict.fromkeys(causes))


def _all(table: Sequence[Cause], failed: Sequence[Judgement], context: Context) -> list[str]:
    causes = []
    for cause in table:
        for text in cause.explain(failed, context):
            causes.append(with_code(text, cause.code))
    return causes


def _first(table: Sequence[Cause], failed: Sequence[Judgement], context: Context) -> list[str]:
    for cause in table:
        texts = _all([cause], failed, context)
        if texts:
            return texts
    return []
