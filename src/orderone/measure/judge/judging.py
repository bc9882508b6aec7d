"""Turn records into verdicts: `judge` joins the measurements of a study with the expectations.

Lines come from the table in `quantities` (fits), from `settings` (known numbers) and from
`untrained` (tensors without updates). `verdict` judges one fit, `causes` explains the failures.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.measure.check import Check
from orderone.measure.fit import Fit
from orderone.measure.judge.causes import likely_causes, read_context
from orderone.measure.judge.common_excess import common_excess, common_gradient
from orderone.measure.judge.multipliers import multipliers
from orderone.measure.judge.quantities import TABLE, When
from orderone.measure.judge.resolution import (
    beyond_chance,
    coarsest,
    if_resolved,
    vanishing_gradients,
    without_turns,
)
from orderone.measure.judge.settings import SettingsJudge
from orderone.measure.judge.study_facts import StudyFacts
from orderone.measure.judge.thresholds import (
    EXACT,
    FEW,
    RESOLUTION,
)
from orderone.measure.judge.unjudged import note_on_unjudged, unjudged_tensors
from orderone.measure.judge.untrained import untrained_tensors
from orderone.measure.judge.verdict import (
    SYMBOLS,
    Expected,
    Finding,
    Judgement,
    Reason,
    Verdict,
    verdict_on_fit,
    without_cancellation,
)
from orderone.measure.observations import StudyResult
from orderone.observe.inventory import inventory
from orderone.observe.quantities import Quantity
from orderone.planning.start_outputs import Kind, kind_of, output_sizes
from orderone.planning.start_sizes import StartReport

MOST_TROUBLES = 3  # largest number of troubles in the notes
NAN = math.nan
# quantities of a tensor that are rounding errors if its gradient is; initial sizes and weight decay
# are not: they do not depend on the gradient
FOLLOWING_GRADIENTS = (Quantity.GRADIENT, Quantity.UPDATE)


def judge(study: StudyResult, confidence: float) -> Check:
    """Return the check: lines, the verdict on the whole, causes and notes."""
    facts = StudyFacts(study)
    untrained, remarks = untrained_tensors(study)
    lines = [*judged_lines(study, facts, confidence), *untrained]
    unjudged = unjudged_tensors(study, lines)
    verdict = verdict_on_whole(study, lines)
    causes = likely_causes(lines, read_context(study, facts))
    if verdict == Verdict.UNCLEAR:
        causes += _reasons_for_unclear(study, lines)
    if verdict == Verdict.PASS and unjudged:
        remarks = [*remarks, note_on_unjudged(unjudged)]
    return Check(
        study.observations,
        tuple(lines),
        verdict,
        tuple(causes),
        (*_first_few(study.troubles), *study.notes, *remarks),
        study.provenance,
        study.interrupted,
        unjudged,
        start_of(study),
    )


def start_of(study: StudyResult) -> StartReport | None:
    """Return the initial sizes of the smallest model: of its tensors, outputs and scores.

    None if it was not planned here, so that nothing tells the roles of its tensors. The plan of the
    largest model has the roles, and the sizes of the base as any other.
    """
    if not study.plans:
        return None
    plan = study.plans[max(study.plans)]
    observations = study.observations
    readouts: set[str] = set()
    for row in plan.rows:
        if row.role == Role.READOUT:
            readouts.update(observations.key(module) for module in row.uses)
    smallest = min(study.sizes)
    recorded: dict[tuple[str, Kind], float] = {}
    for quantity in (Quantity.OUTPUT, Quantity.SCORES):
        for name in observations.names(quantity):
            by_run = observations.at(name, quantity, 0)
            sizes = [moments.rms for key, moments in by_run.items() if key[0] == smallest]
            if sizes:
                recorded[name, kind_of(name, quantity, readouts)] = sum(sizes) / len(sizes)
    return plan.start.with_outputs(output_sizes(recorded))


def judged_lines(study: StudyResult, facts: StudyFacts, confidence: float) -> list[Judgement]:
    """Return all lines about settings, fits and the whole study."""
    weights = {}
    for (name, _, _), fit in study.observations.fits([(Quantity.WEIGHT, 0)], confidence):
        weights[name] = fit
    vanishing = vanishing_gradients(study.observations)
    settings = SettingsJudge(study, facts, weights, vanishing).judgements()
    fits = without_cancellation(_Fits(study, facts, confidence, vanishing).judgements())
    return [
        *settings,
        *multipliers(study, facts),
        *fits,
        *common_excess(study, facts, fits),
        *common_gradient(study, facts, vanishing),
        *_without_fits(study),
    ]


# --- fits -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fits:
    """Judge the fits of all rows of the table that have a predictor."""

    study: StudyResult
    facts: StudyFacts
    confidence: float
    vanishing: frozenset[str]  # tensors whose gradient is rounding error

    def judgements(self) -> list[Judgement]:
        observations = self.study.observations
        lines = []
        for row in TABLE:
            if row.predict is None:
                continue
            wanted = [(row.quantity, step) for step in self._steps(row.when)]
            for (name, quantity, step), fit in observations.fits(wanted, self.confidence):
                is_rounding = quantity in FOLLOWING_GRADIENTS and name in self.vanishing
                if is_rounding or not self._is_due(name, row.when, step):
                    continue
                expected = row.predict(self.facts, name, step)
                if expected is not None and _says_something(expected):
                    lines.append(self._judgement(name, quantity, step, fit, expected))
        return lines

    def _steps(self, when: When) -> list[int]:
        last = self.study.observations.steps
        if when == When.START:
            return [0]
        if when == When.FIRST_UPDATE:
            return list(range(last))
        if when == When.LAST:
            return [last] if last else []
        return sorted({1, last}) if last else []

    def _is_due(self, name: str, when: When, step: int) -> bool:
        if when != When.FIRST_UPDATE:
            return True
        resolution = RESOLUTION * self._precision.get(name, 0.0)
        first = self.study.observations.first_update(name, self.study.first_step, resolution)
        return step == first

    @cached_property
    def _precision(self) -> dict[str, float]:
        """Relative distance of neighbouring numbers in the precision of each tensor."""
        precision: dict[str, float] = {}
        for name, item in inventory(self.study.largest).items():
            if item.tensor.is_floating_point() or item.tensor.is_complex():
                key = self.study.observations.key(name)
                precision[key] = torch.finfo(item.tensor.dtype).eps
        return precision

    @cached_property
    def _coarsest(self) -> float:
        dtypes = [item.tensor.dtype for item in inventory(self.study.largest).values()]
        return coarsest(dtypes, self.study.precision)

    def _judgement(
        self, name: str, quantity: Quantity, step: int, fit: Fit, expected: Expected
    ) -> Judgement:
        study = self.study
        line = (name, quantity, step)
        finding = verdict_on_fit(fit, expected, study.axis)
        if finding.verdict == Verdict.FAIL and finding.reason != Reason.SHRINKS:
            finding = without_turns(study.observations, line, expected, finding, self.confidence)
        if finding.verdict == Verdict.FAIL and expected.two_sided and self.facts.theory is not None:
            excess = fit.exponent - expected.exponent
            features = self.facts.theory.fixed_features(name)
            finding = beyond_chance(study.observations, line, excess, features, finding)
        finding = if_resolved(study.observations, line, finding, self._coarsest)
        if len(study.sizes) < FEW and finding.verdict != Verdict.FAIL:
            finding = Finding(Verdict.UNCLEAR, _too_few(study))
        cause = finding.cause or _gauge(expected, finding.verdict, SYMBOLS[study.axis])
        if finding.verdict == Verdict.SHRINKS:
            missing = self.facts.missing_alignment(name)
            cause = f"{cause}; measured alignment (alpha) explains n^-{missing:.2f}"
        return Judgement(
            name,
            quantity,
            step,
            fit.exponent,
            fit.low,
            fit.high,
            _predicted(expected),
            finding.verdict,
            cause,
            expected.role,
            finding.reason,
            math.nan if expected.two_sided else expected.bound,
            expected.least,
            parts=expected.parts,
        )


def _says_something(expected: Expected) -> bool:
    known = not math.isnan(expected.exponent)
    return known or math.isfinite(expected.bound) or math.isfinite(expected.least)


def _predicted(expected: Expected) -> float:
    if math.isnan(expected.exponent):
        return expected.bound
    return expected.exponent


def _gauge(expected: Expected, verdict: Verdict, size: str) -> str:
    """Explain why a size that is not of order one passes."""
    if verdict != Verdict.PASS or not expected.gauge_of:
        return ""
    if math.isfinite(expected.bound):
        power = expected.bound
    else:
        power = expected.exponent
    if not abs(power) > EXACT:
        return ""
    return (
        f"{size}^{power:.3g} is correct here: the plan writes a factor of another layer or of the"
        f" forward code into {expected.gauge_of} (gauge), for example the factor of a tied readout"
    )


# --- the whole study ------------------------------------------------------------------------------


def _without_fits(study: StudyResult) -> list[Judgement]:
    lines = []
    if study.schedule_fault:
        cause = f"{Reason.SCHEDULE}: {study.schedule_fault}"
        lines.append(_failure(Quantity.SCHEDULE, cause, Reason.SCHEDULE))
    if study.no_growth:
        cause = f"{Reason.SAME_SHAPES}: every size gives the same shapes"
        lines.append(_failure(Quantity.SHAPES, cause, Reason.SAME_SHAPES))
    return lines


def _failure(quantity: Quantity, cause: str, reason: Reason) -> Judgement:
    """Return a failure of the whole study, without a fit."""
    return Judgement("", quantity, 0, NAN, NAN, NAN, NAN, Verdict.FAIL, cause, "", reason)


def verdict_on_whole(study: StudyResult, lines: Sequence[Judgement]) -> Verdict:
    """Return the verdict on the whole check."""
    if any(line.verdict == Verdict.FAIL for line in lines):
        return Verdict.FAIL
    if study.troubles or _predicted_growth(lines):
        return Verdict.UNCLEAR
    last = study.observations.steps
    changes = [line for line in lines if line.quantity == Quantity.CHANGE]
    clear = 0
    for line in changes:
        if line.module == "" and line.step == last and line.verdict == Verdict.UNCLEAR:
            return Verdict.UNCLEAR  # the output of the whole model
        clear += line.verdict in (Verdict.PASS, Verdict.SHRINKS)
    if clear > len(changes) / 2:
        return Verdict.PASS
    return Verdict.UNCLEAR


def _predicted_growth(lines: Sequence[Judgement]) -> list[str]:
    """Describe growth that the rule itself predicts and that is not visible yet."""
    texts = []
    for line in lines:
        if line.verdict == Verdict.UNCLEAR and line.reason == Reason.PREDICTED_GROWTH:
            texts.append(with_code(f"{_name(line)}: {line.cause}", "rule-predicts-growth"))
    return texts


def _reasons_for_unclear(study: StudyResult, lines: Sequence[Judgement]) -> list[str]:
    predicted_growth = _predicted_growth(lines)
    if study.troubles or predicted_growth:
        return [*_first_few(study.troubles), *predicted_growth[:1]]
    if len(study.sizes) < FEW:
        return [with_code(_too_few(study), "too-few-sizes")]
    unclear = [line for line in lines if line.verdict == Verdict.UNCLEAR]
    changes = [line for line in unclear if line.quantity == Quantity.CHANGE]
    if not unclear:
        return [with_code("inconclusive: no exponent could be fitted", "nothing-fitted")]
    first = (changes or unclear)[0]
    if first.reason == Reason.FROZEN:
        return [with_code(f"{first.module}: {first.cause}", "frozen-tensor")]
    return [with_code(f"{_name(first)}: {first.cause}", "noisy-exponents")]


def _name(line: Judgement) -> str:
    """Return what was judged; quotes make clear that `4` is a name."""
    if not line.module:
        return f"the {line.quantity} of the model"
    return f"the {line.quantity} of {line.module!r}"


def _too_few(study: StudyResult) -> str:
    return (
        f"inconclusive: {len(study.sizes)} {study.axis}s were measured, and at least {FEW} are"
        " needed to see whether sizes follow a power law; pass more"
    )


def _first_few(troubles: Sequence[str]) -> list[str]:
    if len(troubles) <= MOST_TROUBLES:
        return [*troubles]
    return [*troubles[:MOST_TROUBLES], f"and {len(troubles) - MOST_TROUBLES} more of this kind"]
