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

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.measure.judge.causes.context import Context
from orderone.measure.judge.causes.everything import (
    base_equals_target,
    broken_schedule,
    no_growth,
    predicted_growth,
    say_base_equals_target,
    say_broken_schedule,
    say_predicted_growth,
    say_same_shapes,
    say_standard_parameterization,
    say_unfinished_plan,
    say_unscaled_branches,
    standard_parameterization,
    unfinished_plan,
    unscaled_branches,
)
from orderone.measure.judge.causes.failed_lines import Failed
from orderone.measure.judge.causes.steps import (
    damped_steps,
    loss_scale,
    normalized_readouts,
    say_damped_steps,
    say_loss_scale,
    say_normalized_readouts,
)
from orderone.measure.judge.causes.symptoms import (
    anything,
    attention,
    growing_branches,
    growing_inputs,
    growing_readout,
    say_attention,
    say_growing_activations,
    say_growing_branches,
    say_growing_inputs,
    say_growing_readout,
    say_small_changes,
    say_small_inputs,
    say_small_output_gradients,
    say_wrong_projections,
    small_changes,
    small_inputs,
    small_output_gradients,
    wrong_projections,
)
from orderone.measure.judge.causes.tensors import (
    different_settings,
    frozen_tensors,
    ignored_multipliers,
    multipliers,
    say_different_settings,
    say_frozen_tensors,
    say_ignored_multipliers,
    say_multipliers,
    say_unscaled_scores,
    say_wrong_decay,
    say_wrong_eps,
    say_wrong_rates,
    say_wrong_starts,
    unscaled_scores,
    wrong_decay,
    wrong_eps,
    wrong_rates,
    wrong_starts,
)
from orderone.measure.judge.verdict import Judgement, Verdict


class Scope(StrEnum):
    """How much a cause explains."""

    EVERYTHING = "everything"
    TENSORS = "tensors"
    STEPS = "steps"
    SYMPTOMS = "symptoms"


Condition = Callable[[Failed, Context], Failed]  # the failed lines that a cause explains
Sentence = Callable[[Failed, Context], list[str]]


class Cause(NamedTuple):
    """A kind of cause: its code, how much it explains, when it applies, and what it says."""

    code: str
    scope: Scope
    condition: Condition
    sentence: Sentence


def _rates(code: str, role: Role, fault: str) -> Cause:
    """Return the row about the learning rates of one role."""
    condition = partial(wrong_rates, role)
    return Cause(code, _TENSORS, condition, partial(say_wrong_rates, fault))


_ALL = Scope.EVERYTHING
_TENSORS = Scope.TENSORS
_STEPS = Scope.STEPS
_SYMPTOMS = Scope.SYMPTOMS

TABLE: tuple[Cause, ...] = (
    Cause("same-shapes", _ALL, no_growth, say_same_shapes),
    Cause("base-equals-target", _ALL, base_equals_target, say_base_equals_target),
    Cause("broken-schedule", _ALL, broken_schedule, say_broken_schedule),
    Cause("unfinished-plan", _ALL, unfinished_plan, say_unfinished_plan),
    Cause("unscaled-branches", _ALL, unscaled_branches, say_unscaled_branches),
    Cause("rule-predicts-growth", _ALL, predicted_growth, say_predicted_growth),
    Cause(
        "standard-parameterization",
        _ALL,
        standard_parameterization,
        say_standard_parameterization,
    ),
    Cause("frozen-tensor", _TENSORS, frozen_tensors, say_frozen_tensors),
    Cause("settings-depend-on-size", _TENSORS, different_settings, say_different_settings),
    Cause("attention-not-scaled", _TENSORS, unscaled_scores, say_unscaled_scores),
    Cause(
        "shrinking-output", _TENSORS, partial(ignored_multipliers, True), say_ignored_multipliers
    ),
    Cause(
        "growing-activations",
        _TENSORS,
        partial(ignored_multipliers, False),
        say_ignored_multipliers,
    ),
    Cause("shrinking-output", _TENSORS, partial(multipliers, True), say_multipliers),
    Cause("growing-activations", _TENSORS, partial(multipliers, False), say_multipliers),
    _rates("lr-not-scaled", Role.EMBEDDING, "embedding learning rate"),
    _rates("lr-not-scaled", Role.HIDDEN, "hidden learning rate"),
    _rates("readout-not-scaled", Role.READOUT, "readout not scaled"),
    _rates("lr-not-scaled", Role.FIXED, "learning rate of tensors of fixed size"),
    _rates("lr-not-scaled", Role.VECTOR, "learning rate of biases and gains"),
    Cause("wrong-initial-size", _TENSORS, partial(wrong_starts, False), say_wrong_starts),
    Cause("readout-not-scaled", _TENSORS, partial(wrong_starts, True), say_wrong_starts),
    Cause("decay-not-scaled", _TENSORS, wrong_decay, say_wrong_decay),
    Cause("eps-not-scaled", _TENSORS, wrong_eps, say_wrong_eps),
    Cause("normalized-readout", _STEPS, normalized_readouts, say_normalized_readouts),
    Cause("loss-scale", _STEPS, loss_scale, say_loss_scale),
    Cause("small-gradients", _STEPS, damped_steps, say_damped_steps),
    Cause("attention-not-scaled", _SYMPTOMS, wrong_projections, say_wrong_projections),
    Cause("attention-not-scaled", _SYMPTOMS, attention, say_attention),
    Cause("shrinking-input", _SYMPTOMS, small_inputs, say_small_inputs),
    Cause("shrinking-gradient", _SYMPTOMS, small_output_gradients, say_small_output_gradients),
    Cause("shrinking-output", _SYMPTOMS, small_changes, say_small_changes),
    Cause("unscaled-branches", _SYMPTOMS, growing_branches, say_growing_branches),
    Cause("growing-activations", _SYMPTOMS, growing_inputs, say_growing_inputs),
    Cause("readout-not-scaled", _SYMPTOMS, growing_readout, say_growing_readout),
    Cause("growing-activations", _SYMPTOMS, anything, say_growing_activations),
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
    frozen = frozen_tensors(failed, context)
    return [with_code(text, "frozen-tensor") for text in say_frozen_tensors(frozen, context)]
