"""From failed lines to likely causes: an ordered table, root causes first and symptoms last.

A row has a code (which `orderone.core.codes` explains), a scope, a condition and a sentence. The
condition returns the failed lines that the cause explains, in the order of the network; without
any, the cause does not apply. Scopes, in this order:

    everything   the first that applies explains all failures
    tensors      all that apply: settings and initial sizes of tensors
    steps        the first that applies: steps that are not what rates and gradients imply
    symptoms     the first that applies: sizes in the forward and the backward pass, earliest place
                 first
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.measure.judge.expected_scores import ATTENTION
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.thresholds import BOUNDARY
from orderone.measure.judge.verdict import SYMBOLS, Judgement, Reason, Verdict
from orderone.measure.observations import StudyResult
from orderone.observe.inventory import inventory
from orderone.observe.quantities import Quantity

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
    planned: bool = False  # the plan made the optimizer
    follows_gradients: bool = False  # the size of steps follows that of gradients (SGD)
    # readouts whose output a norm divides by its size
    normalized: Sequence[str] = ()
    queries: frozenset[str] = frozenset()  # tensors that make the queries of attention
    # exponents of the inputs of modules, at the start
    inputs: Mapping[str, float] = field(default_factory=dict)

    @property
    def in_depth(self) -> bool:
        """True if the models differ in depth."""
        return self.axis == "depth"

    def power(self, exponent: float) -> str:
        """Return a power of the size in words: `n^+0.50`."""
        return f"{SYMBOLS[self.axis]}^{exponent:+z.2f}"


def read_context(study: StudyResult, facts: StudyFacts) -> Context:
    """Gather the facts of a study."""
    return Context(
        rule=study.rule,
        axis=study.axis,
        tied=any(len(item.places) > 1 for item in inventory(study.largest).values()),
        no_growth=study.no_growth,
        base_is_target=_base_is_target(study),
        schedule_fault=study.schedule_fault,
        undone=study.undone,
        unscaled_branches=_has_unscaled_branches(study),
        one_rate=_has_one_rate(study),
        planned=not study.has_user_optimizer,
        follows_gradients=facts.theory is not None and facts.follows_gradients,
        normalized=_normalized(study, facts),
        queries=_queries(study),
        inputs=facts.measured_exponents(Quantity.INPUT),
    )


def _queries(study: StudyResult) -> frozenset[str]:
    """Return the tensors that make the queries of attention, without those that make keys too."""
    names: set[str] = set()
    if study.family is not None:
        for score in study.family.facts.scores:
            names |= set(score.queries) - set(score.keys)
    return frozenset(study.observations.key(name) for name in names)


def _normalized(study: StudyResult, facts: StudyFacts) -> list[str]:
    """Return the readouts whose output a norm divides by its size."""
    theory = facts.theory
    if theory is None or study.family is None:
        return []
    names = [study.observations.key(name) for name in study.family.facts.normalized]
    return [name for name in names if theory.rows[name][1].role == Role.READOUT]


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
    planned = {row.default_lr for row in study.plans[study.sizes[-1]].rows}
    return len(rates) == 1 and len(planned) > 1


def _has_unscaled_branches(study: StudyResult) -> bool:
    if study.axis != "depth" or study.family is None or study.depth_rule is not None:
        return False
    return bool(study.family.facts.branches)


Failed = Sequence[Judgement]


def _select(lines: Failed, quantities: Collection[Quantity], role: str = "") -> list[Judgement]:
    """Return the lines of these quantities, and of one role if it is not empty."""
    selected = [line for line in lines if line.quantity in quantities]
    if role:
        return [line for line in selected if line.role == role]
    return selected


def _is_small(line: Judgement) -> bool:
    return line.reason == Reason.SHRINKS or line.exponent < line.predicted


# --- causes that explain everything ---------------------------------------------------------------


def _no_growth(failed: Failed, context: Context) -> Failed:
    return failed if context.no_growth else ()


def _say_same_shapes(lines: Failed, context: Context) -> list[str]:
    return [
        "all models are equal: build returns a model of the same shapes at every size; does it"
        " use its argument?"
    ]


def _base_equals_target(failed: Failed, context: Context) -> Failed:
    return failed if context.base_is_target else ()


def _say_base_equals_target(lines: Failed, context: Context) -> list[str]:
    return [
        "base equals target: every factor of the plan is 1; use the same, smaller base at every"
        " size"
    ]


def _broken_schedule(failed: Failed, context: Context) -> Failed:
    """Select failures of a schedule. Only a schedule changes the rates of a plan's optimizer."""
    if context.schedule_fault:
        return failed
    if context.planned:
        return _select(failed, (Quantity.RATE,))
    return ()


def _say_broken_schedule(lines: Failed, context: Context) -> list[str]:
    fault = context.schedule_fault
    if not fault:
        fault = (
            f"it sets the learning rate of {_names(lines)} to a number that does not follow the"
            " plan (is it max_lr?)"
        )
    return [f"schedule: {fault}"]


def _different_settings(failed: Failed, context: Context) -> Failed:
    return _select(failed, (Quantity.SETTINGS,))


def _say_different_settings(lines: Failed, context: Context) -> list[str]:
    return [f"optimizer settings: {line.cause}" for line in lines]


def _unfinished_plan(failed: Failed, context: Context) -> Failed:
    """Select failures in the forward pass, if the plan leaves a task to the model's code."""
    if not context.undone or _select(failed, (Quantity.RATE, Quantity.UPDATE)):
        return ()
    return _select(failed, (*FORWARD, Quantity.SCORES))


def _say_unfinished_plan(lines: Failed, context: Context) -> list[str]:
    return [f"the plan cannot do this, change the model's code: {task}" for task in context.undone]


def _unscaled_branches(failed: Failed, context: Context) -> Failed:
    if not context.unscaled_branches:
        return ()
    return _select(failed, ACTIVATIONS)


def _say_unscaled_branches(lines: Failed, context: Context) -> list[str]:
    return ["residual branches are not scaled with depth: pass depth='sqrt' or depth='completep'"]


def _predicted_growth(failed: Failed, context: Context) -> Failed:
    if _select(failed, (Quantity.RATE, Quantity.UPDATE)):
        return ()
    predicted = []
    for line in failed:
        if line.reason == Reason.PREDICTED_GROWTH and line.role != ATTENTION:
            predicted.append(line)
    return predicted


def _say_predicted_growth(lines: Failed, context: Context) -> list[str]:
    worst = max(lines, key=lambda line: line.exponent)
    return [
        f"the rule itself: {context.rule} predicts that {_name(worst)} grows (theory"
        f" {context.power(worst.predicted)}, measured {context.power(worst.exponent)}); mup keeps"
        " it of order one"
    ]


def _standard_parameterization(failed: Failed, context: Context) -> Failed:
    """Select wrong rates of hidden matrices and readouts that are too fast by about one power."""
    if context.axis != "width" or context.rule == "standard":
        return ()
    rates = _select(failed, (Quantity.RATE,))
    if context.one_rate:
        return rates
    excess = {line.role: line.exponent - line.predicted for line in rates}
    is_standard = excess.get(Role.HIDDEN, 0.0) > 0.75 and excess.get(Role.READOUT, 0.0) > 0.25
    return rates if is_standard else ()


def _say_standard_parameterization(lines: Failed, context: Context) -> list[str]:
    return [
        f"standard parameterization, not {context.rule}: learning rates do not change with the"
        f" width as {context.rule} requires (one rate for all tensors and sizes)"
    ]


# --- causes of tensors ----------------------------------------------------------------------------


def _frozen_tensors(failed: Failed, context: Context) -> Failed:
    return [line for line in failed if line.reason == Reason.FROZEN]


def _say_frozen_tensors(lines: Failed, context: Context) -> list[str]:
    return [f"{line.module}: {line.cause}" for line in lines[:MOST_FROZEN]]


def _ignored_multipliers(shrinks: bool, failed: Failed, context: Context) -> Failed:
    """Select tensors whose initial size and rate ignore a multiplier in the forward code."""
    lines = []
    for line in failed:
        is_ignored = line.reason == Reason.MULTIPLIER and line.module not in context.queries
        if is_ignored and (line.multiplier < 0) == shrinks:
            lines.append(line)
    return lines


def _say_ignored_multipliers(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"the forward code multiplies the product with {_names(lines)} by"
        f" {context.power(first.multiplier)}, and neither initial size nor learning rate (which"
        f" scales like {context.power(first.exponent)}) compensates it: remove the factor, or"
        f" use the learning rate {context.power(first.predicted)}"
    ]


def _unscaled_scores(failed: Failed, context: Context) -> Failed:
    """Select queries that ignore the factor by which the forward code multiplies scores."""
    lines = [line for line in failed if line.reason == Reason.MULTIPLIER]
    return [line for line in lines if line.module in context.queries]


def _say_unscaled_scores(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        "attention scale: scores in the forward code are"
        f" {context.power(first.multiplier)} times queries times keys / head size, and neither"
        f" initial size nor learning rate of {_names(lines)} compensates this factor: divide by the"
        " head size, and by no other power of the width"
    ]


def _wrong_rates(role: Role, failed: Failed, context: Context) -> Failed:
    lines = _select(failed, (Quantity.RATE,), role)
    return [line for line in lines if line.reason != Reason.MULTIPLIER]


def _say_wrong_rates(fault: str, lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    tied = ""
    if context.tied and first.role == Role.EMBEDDING:
        tied = "tied weights: "
    if math.isnan(first.exponent):
        return [f"{tied}{fault}: {first.module}: {first.cause}"]
    return [
        f"{tied}{fault}: learning rates of {_names(lines)} scale like"
        f" {context.power(first.exponent)}; {context.rule} requires"
        f" {context.power(first.predicted)}"
    ]


def _wrong_starts(is_readout: bool, failed: Failed, context: Context) -> Failed:
    """Select wrong initial sizes of weights; without any, those of outputs."""
    starts = []
    for line in _select(failed, (Quantity.WEIGHT,)):
        if (line.role == Role.READOUT) == is_readout:
            starts.append(line)
    if starts or _select(failed, (Quantity.WEIGHT, Quantity.RATE)):
        return starts
    # growth and shrinkage inside the network are symptoms: the first place counts
    for line in _select(failed, (Quantity.OUTPUT,)):
        at_start = line.step == 0 and not math.isfinite(line.bound)
        if at_start and (line.role == Role.READOUT) == is_readout:
            starts.append(line)
    return starts


def _say_wrong_starts(lines: Failed, context: Context) -> list[str]:
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
            f"{readout}initial size of {_names(starts)} scales like"
            f" {context.power(starts[0].exponent)}; {context.rule} requires"
            f" {context.power(starts[0].predicted)}"
        )
    return sentences


def _wrong_decay(failed: Failed, context: Context) -> Failed:
    """Select wrong weight decays; a wrong learning rate also makes the decay wrong."""
    penalties = _select(failed, (Quantity.PENALTY,))
    if penalties:
        return penalties
    wrong_rates = {line.module for line in _select(failed, (Quantity.RATE,))}
    decays = []
    for line in _select(failed, (Quantity.DECAY,)):
        if line.module not in wrong_rates:
            decays.append(line)
    return decays


def _say_wrong_decay(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    if first.quantity == Quantity.PENALTY:
        return [
            f"weight decay: the penalty of {_names(lines)} is normalized together with the"
            f" gradient; weight_decay scales like {context.power(first.exponent)}, and must scale"
            f" like gradient / weight, {context.power(first.predicted)}; or use decoupled weight"
            " decay (AdamW)"
        ]
    return [
        f"weight decay: a step shrinks {_names(lines)} by a fraction that scales like"
        f" {context.power(first.exponent)}; keep lr * weight_decay the same at every size"
        " (decay='independent')"
    ]


def _wrong_eps(failed: Failed, context: Context) -> Failed:
    return _select(failed, (Quantity.EPS,))


def _say_wrong_eps(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"eps of {_names(lines)} is not small compared with the gradient, and scales like"
        f" {context.power(first.exponent)} instead of {context.power(first.predicted)}: it makes"
        " the steps of large models smaller; choose a smaller eps, or let it scale like the"
        " gradient"
    ]


def _normalized_readouts(failed: Failed, context: Context) -> Failed:
    """Select what grows around a readout whose output is normalized."""
    if not context.normalized or _select(failed, (Quantity.RATE, Quantity.WEIGHT)):
        return ()
    return [line for line in _select(failed, FORWARD) if not _is_small(line)]


def _say_normalized_readouts(lines: Failed, context: Context) -> list[str]:
    fastest = _fastest(lines)
    return [
        f"a norm divides the output of {context.normalized[0]} by its size, which is only"
        f" {context.power(-0.5)} at the start. In the first steps this makes changes after the norm"
        f" and gradients before it {context.power(0.5)} times too large ({_name(fastest)} grows"
        f" like {context.power(fastest.exponent)}): normalize before the readout, or let the number"
        " of entries of this output grow with the width"
    ]


# --- causes of steps ------------------------------------------------------------------------------


def _loss_scale(failed: Failed, context: Context) -> Failed:
    lines = _select(failed, (Quantity.OUTPUT_GRADIENT, Quantity.GRADIENT))
    return [line for line in lines if line.module == "" and math.isnan(line.bound)]


def _say_loss_scale(lines: Failed, context: Context) -> list[str]:
    if lines[0].quantity == Quantity.GRADIENT:
        measured = context.power(lines[0].exponent)
        return [
            f"loss: the gradients of all tensors are {measured} times those of {context.rule}, and"
            " the steps of this optimizer are proportional to gradients: is the loss multiplied or"
            " divided by a size?"
        ]
    return [
        f"loss: its gradient at the model's output scales like {context.power(lines[0].exponent)}"
        f" instead of {context.power(lines[0].predicted)}, and the steps of this optimizer are"
        " proportional to it: does the loss divide by a size, or is there a factor after the"
        " model's output?"
    ]


def _damped_steps(failed: Failed, context: Context) -> Failed:
    return _select(failed, (Quantity.STEP, Quantity.UPDATE))


def _say_damped_steps(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    names = _names([line for line in lines if line.quantity == Quantity.UPDATE]) or "all tensors"
    measured = f"updates of {names} scale like {context.power(first.exponent)}"
    if first.quantity == Quantity.STEP:
        factor = context.power(first.exponent)
        measured = f"updates of {names} are {factor} times those that follow from learning rates"
    if context.follows_gradients:
        return [
            f"clipped gradients: {measured}, so they are not proportional to learning rate times"
            " gradient. Gradients are clipped or rescaled to a fixed norm: let the limit scale with"
            " the size, or leave it out"
        ]
    return [
        f"small gradients: {measured}, although learning rates scale correctly: eps is not small"
        " compared with the gradients (choose a smaller one), or gradients are clipped"
    ]


# --- symptoms in the forward and backward pass ----------------------------------------------------


def _attention(failed: Failed, context: Context) -> Failed:
    """Select scores that are wrong, unless the residual stream grows with another axis."""
    if context.axis != "width":
        return ()
    return [line for line in failed if line.role == ATTENTION]


def _say_attention(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    if _is_small(first):
        return [
            f"attention scale: scores of {_names(lines)} shrink like"
            f" {context.power(first.exponent)} (expected {context.power(first.predicted)}): they"
            " are divided by a power of the model's width; divide by the head size alone"
        ]
    return [
        f"attention scale: scores of {_names(lines)} grow like"
        f" {context.power(first.exponent)}; divide queries times keys by the head size, not by"
        " its square root"
    ]


def _small_inputs(failed: Failed, context: Context) -> Failed:
    return _select(failed, (Quantity.INPUT,))


def _say_small_inputs(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"the input of module {first.module!r} shrinks like {context.power(first.exponent)}, so"
        " this module and all modules after it learn less in large models: look for a division"
        " before it (a normalization to length one needs a factor sqrt(n), a softmax over channels"
        " a factor n)"
    ]


def _small_changes(failed: Failed, context: Context) -> Failed:
    """Select what shrinks, if nothing grows."""
    if not all(_is_small(line) for line in failed):
        return ()
    changes = _select(failed, (Quantity.CHANGE, Quantity.SCORE_CHANGE))
    return changes or _select(failed, ACTIVATIONS)


def _say_small_changes(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"{_name(first)} shrinks ({context.power(first.exponent)}) by more than the alignment of"
        " its layer explains: look for a division in the forward code"
    ]


def _small_output_gradients(failed: Failed, context: Context) -> Failed:
    lines = _select(failed, (Quantity.OUTPUT_GRADIENT,))
    return lines if len(lines) == len(failed) else ()


def _say_small_output_gradients(lines: Failed, context: Context) -> list[str]:
    last = lines[-1]
    return [
        f"the gradient at the output of {_quoted(last.module)} shrinks like"
        f" {context.power(last.exponent)} (at least {context.power(last.least)} is expected): code"
        " after this module multiplies its output by a number that shrinks with the width"
    ]


def _growing_branches(failed: Failed, context: Context) -> Failed:
    grown = _select(failed, FORWARD)
    return grown if context.in_depth and len(grown) == len(failed) else ()


def _say_growing_branches(lines: Failed, context: Context) -> list[str]:
    return [
        f"residual branches are not scaled with depth: {_name(lines[0])} grows like"
        f" {context.power(lines[0].exponent)}; multiply what every branch adds by 1/sqrt(L) or"
        " 1/L"
    ]


def _growing_inputs(failed: Failed, context: Context) -> Failed:
    """Select what grows first, if the input of its module grows too: the cause is before it."""
    if context.axis != "width":
        return ()
    for line in _select(failed, FORWARD):
        if not _is_small(line):
            grows = context.inputs.get(line.module, 0.0) > BOUNDARY
            return [line] if grows else ()
    return ()


def _say_growing_inputs(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    return [
        f"the input of {_quoted(first.module)} grows like"
        f" {context.power(context.inputs[first.module])}, and {_name(first)} with it"
        f" ({context.power(first.exponent)}): look at what the forward code adds up or multiplies"
        " before it (a sum over channels needs a factor 1/n)"
    ]


def _growing_readout(failed: Failed, context: Context) -> Failed:
    roles = {line.role for line in failed if line.role}
    return failed if roles == {Role.READOUT} else ()


def _say_growing_readout(lines: Failed, context: Context) -> list[str]:
    fastest = _fastest(lines)
    return [f"readout not scaled: {_name(fastest)} grows like {context.power(fastest.exponent)}"]


def _anything(failed: Failed, context: Context) -> Failed:
    grown = [line for line in _select(failed, FORWARD) if not _is_small(line)]
    return grown or failed


def _say_growing_activations(lines: Failed, context: Context) -> list[str]:
    first = lines[0]
    fastest = _fastest(lines)
    return [
        f"{_name(first)} is the first in the forward pass that grows"
        f" ({context.power(first.exponent)}); {_name(fastest)} grows fastest"
        f" ({context.power(fastest.exponent)}): look for a factor in the forward code there"
    ]


def _fastest(lines: Failed) -> Judgement:
    fitted = [line for line in lines if not math.isnan(line.exponent)]
    return max(fitted, key=lambda line: line.exponent, default=lines[0])


# --- names ----------------------------------------------------------------------------------------


def _name(line: Judgement) -> str:
    return f"the {line.quantity} of {_quoted(line.module)}"


def _quoted(module: str) -> str:
    """Return a module's name as words; quotes make clear that `4` is a name."""
    if not module:
        return "the model"
    return f"module {module!r}"


def _names(lines: Failed) -> str:
    names = list(dict.fromkeys(line.module or "the model" for line in lines))
    if len(names) > 2:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return ", ".join(names)


# --- the table ------------------------------------------------------------------------------------


class Scope(StrEnum):
    """How much a cause explains."""

    EVERYTHING = "everything"
    TENSORS = "tensors"
    STEPS = "steps"
    SYMPTOMS = "symptoms"


class Cause(NamedTuple):
    """A kind of cause: its code, how much it explains, when it applies, and what it says."""

    code: str
    scope: Scope
    condition: Callable[[Failed, Context], Failed]  # the failed lines that it explains
    sentence: Callable[[Failed, Context], list[str]]


_ALL = Scope.EVERYTHING
_TENSORS = Scope.TENSORS
_STEPS = Scope.STEPS
_SYMPTOMS = Scope.SYMPTOMS

TABLE: tuple[Cause, ...] = (
    Cause("same-shapes", _ALL, _no_growth, _say_same_shapes),
    Cause("base-equals-target", _ALL, _base_equals_target, _say_base_equals_target),
    Cause("broken-schedule", _ALL, _broken_schedule, _say_broken_schedule),
    Cause("unfinished-plan", _ALL, _unfinished_plan, _say_unfinished_plan),
    Cause("unscaled-branches", _ALL, _unscaled_branches, _say_unscaled_branches),
    Cause("rule-predicts-growth", _ALL, _predicted_growth, _say_predicted_growth),
    Cause(
        "standard-parameterization",
        _ALL,
        _standard_parameterization,
        _say_standard_parameterization,
    ),
    Cause("frozen-tensor", _TENSORS, _frozen_tensors, _say_frozen_tensors),
    Cause("settings-depend-on-size", _TENSORS, _different_settings, _say_different_settings),
    Cause("attention-not-scaled", _TENSORS, _unscaled_scores, _say_unscaled_scores),
    Cause(
        "shrinking-output",
        _TENSORS,
        partial(_ignored_multipliers, True),
        _say_ignored_multipliers,
    ),
    Cause(
        "growing-activations",
        _TENSORS,
        partial(_ignored_multipliers, False),
        _say_ignored_multipliers,
    ),
    Cause(
        "lr-not-scaled",
        _TENSORS,
        partial(_wrong_rates, Role.EMBEDDING),
        partial(_say_wrong_rates, "embedding learning rate"),
    ),
    Cause(
        "lr-not-scaled",
        _TENSORS,
        partial(_wrong_rates, Role.HIDDEN),
        partial(_say_wrong_rates, "hidden learning rate"),
    ),
    Cause(
        "readout-not-scaled",
        _TENSORS,
        partial(_wrong_rates, Role.READOUT),
        partial(_say_wrong_rates, "readout not scaled"),
    ),
    Cause(
        "lr-not-scaled",
        _TENSORS,
        partial(_wrong_rates, Role.FIXED),
        partial(_say_wrong_rates, "learning rate of tensors of fixed size"),
    ),
    Cause(
        "lr-not-scaled",
        _TENSORS,
        partial(_wrong_rates, Role.VECTOR),
        partial(_say_wrong_rates, "learning rate of biases and gains"),
    ),
    Cause("wrong-initial-size", _TENSORS, partial(_wrong_starts, False), _say_wrong_starts),
    Cause("readout-not-scaled", _TENSORS, partial(_wrong_starts, True), _say_wrong_starts),
    Cause("decay-not-scaled", _TENSORS, _wrong_decay, _say_wrong_decay),
    Cause("eps-not-scaled", _TENSORS, _wrong_eps, _say_wrong_eps),
    Cause("normalized-readout", _STEPS, _normalized_readouts, _say_normalized_readouts),
    Cause("loss-scale", _STEPS, _loss_scale, _say_loss_scale),
    Cause("small-gradients", _STEPS, _damped_steps, _say_damped_steps),
    Cause("attention-not-scaled", _SYMPTOMS, _attention, _say_attention),
    Cause("shrinking-input", _SYMPTOMS, _small_inputs, _say_small_inputs),
    Cause("shrinking-gradient", _SYMPTOMS, _small_output_gradients, _say_small_output_gradients),
    Cause("shrinking-output", _SYMPTOMS, _small_changes, _say_small_changes),
    Cause("unscaled-branches", _SYMPTOMS, _growing_branches, _say_growing_branches),
    Cause("growing-activations", _SYMPTOMS, _growing_inputs, _say_growing_inputs),
    Cause("readout-not-scaled", _SYMPTOMS, _growing_readout, _say_growing_readout),
    Cause("growing-activations", _SYMPTOMS, _anything, _say_growing_activations),
)


def likely_causes(judgements: Sequence[Judgement], context: Context) -> list[str]:
    """Return the likely causes of all failures, each with its code at the end."""
    failed = [line for line in judgements if line.verdict == Verdict.FAIL]
    if not failed:
        return []
    for scope in Scope:
        causes = _apply(scope, failed, context)
        if scope == Scope.EVERYTHING and causes:
            causes += [cause for cause in _apply_frozen(failed, context) if cause not in causes]
        if causes:
            return list(dict.fromkeys(causes))
    return []


def _apply(scope: Scope, failed: Failed, context: Context) -> list[str]:
    """Return the sentences of the causes of one scope: of all, or of the first that applies."""
    texts = []
    for cause in TABLE:
        if cause.scope != scope:
            continue
        lines = cause.condition(failed, context)
        if not lines:
            continue
        texts += [with_code(text, cause.code) for text in cause.sentence(lines, context)]
        if scope != Scope.TENSORS:
            return texts
    return texts


def _apply_frozen(failed: Failed, context: Context) -> list[str]:
    """Return the sentences about frozen tensors: no other cause explains these."""
    frozen = _frozen_tensors(failed, context)
    return [with_code(text, "frozen-tensor") for text in _say_frozen_tensors(frozen, context)]
