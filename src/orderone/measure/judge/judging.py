"""From records to verdicts: on each fitted exponent, on tensors without updates, on the whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property

from orderone.core.errors import with_code
from orderone.core.roles import Role
from orderone.measure.alignment_ratios import MeasuredAlignment
from orderone.measure.check import Check
from orderone.measure.fit import Fit
from orderone.measure.judge.causes import likely_causes, read_context
from orderone.measure.judge.expectations import AdjustedExpectations
from orderone.measure.judge.verdict import (
    BOUNDARY,
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
from orderone.measure.runs import ratios_kept
from orderone.observe.inventory import Item, inventory, modules_by_name
from orderone.observe.moments import Moments
from orderone.observe.quantities import UPDATES, Quantity

FEW = 3  # smallest number of sizes for PASS; with fewer, a curve cannot be distinguished
# relative to the median gradient; smaller gradients are rounding errors (a bias of keys, to which
# softmax is invariant)
VANISHING = 1e-6
CANCELLED = 1e-4  # relative to a random sum; smaller sums are rounding errors
NEGLIGIBLE = 1e-2  # relative to the gradient; smaller penalties have no effect
UNALIGNED = 0.5  # exponent of alignment for independent factors
MOST_TROUBLES = 3  # largest number of troubles in the notes
NAN = math.nan


@dataclass(frozen=True)
class Judge:
    """Judge the result of a study; the result itself is not changed."""

    study: StudyResult
    confidence: float  # confidence level of the intervals

    def check(self) -> Check:
        """Return the check: judgements, the verdict on the whole, causes and notes."""
        study = self.study
        untrained, remarks = _untrained_tensors(study)
        judgements = [
            *self._with_alignment(without_cancellation(self._judged_fits())),
            *untrained,
            *self._judged_without_fits(),
        ]
        verdict = self._verdict(judgements)
        context = read_context(study, self._expectations, self._schedule_fault)
        causes = likely_causes(judgements, context)
        if verdict == Verdict.UNCLEAR:
            causes += self._reasons_for_unclear(judgements)
        return Check(
            study.observations,
            tuple(judgements),
            verdict,
            tuple(causes),
            (*_first_few(study.troubles), *study.notes, *remarks),
            study.provenance,
            study.interrupted,
        )

    @cached_property
    def _expectations(self) -> AdjustedExpectations:
        return AdjustedExpectations(self.study)

    @cached_property
    def _schedule_fault(self) -> str:
        """Fault of the learning-rate schedule; empty if there is none."""
        if self.study.schedule_fault:
            return self.study.schedule_fault
        if all(ratios_kept(run.rates) for run in self.study.observations.runs):
            return ""
        return (
            "learning rates do not change by the same factor from step to step (is it eta_min or"
            " max_lr?)"
        )

    # --- fits -------------------------------------------------------------------------------------

    def _judged_quantities(self) -> list[tuple[Quantity, int]]:
        """Return the quantities to judge, each with its step.

        Changes are judged after the first step and after the last: they fade once the task is
        learnt. Updates are judged at the first update of each tensor.
        """
        last = self.study.observations.steps
        judged = [
            (Quantity.OUTPUT, 0),
            (Quantity.OUTPUT_GRADIENT, 0),
            (Quantity.GRADIENT, 0),
            (Quantity.DECAY, 0),
            (Quantity.PENALTY, 0),
        ]
        if not self.study.has_user_optimizer:
            judged.append((Quantity.WEIGHT, 0))
        if not last:
            return judged
        for step in {1, last}:
            judged += [(Quantity.CHANGE, step), (Quantity.SCORE_CHANGE, step)]
        judged.append((Quantity.OUTPUT, last))
        for step in range(last):
            judged += [(quantity, step) for quantity in UPDATES]
        return judged

    def _judged_fits(self) -> list[Judgement]:
        observations = self.study.observations
        vanishing = self._vanishing_gradients()
        judgements = []
        for (name, quantity, step), fit in observations.fits(
            self._judged_quantities(), self.confidence
        ):
            if name in vanishing:
                continue
            if quantity == Quantity.PENALTY and observations.largest(name, quantity) < NEGLIGIBLE:
                continue
            if quantity in UPDATES:
                first = observations.first_update(name, self.study.first_step)
                if step != first:
                    continue
            expected = self._expectations.expect(name, quantity, step)
            if expected is None:
                continue
            if math.isnan(expected.exponent) and math.isinf(expected.bound):
                continue
            judgements.append(self._judgement(name, quantity, step, fit, expected))
        return judgements

    def _judgement(
        self, name: str, quantity: Quantity, step: int, fit: Fit, expected: Expected
    ) -> Judgement:
        finding = verdict_on_fit(fit, expected, quantity, self.study.axis)
        if len(self.study.sizes) < FEW and finding.verdict != Verdict.FAIL:
            finding = Finding(Verdict.UNCLEAR, self._too_few)
        if math.isnan(expected.exponent):
            predicted = expected.bound
        else:
            predicted = expected.exponent
        return Judgement(
            name,
            quantity,
            step,
            fit.exponent,
            fit.low,
            fit.high,
            predicted,
            finding.verdict,
            finding.cause or self._gauge(expected, finding.verdict),
            expected.role,
            finding.reason,
            math.nan if expected.two_sided else expected.bound,
        )

    def _gauge(self, expected: Expected, verdict: Verdict) -> str:
        """Explain why a size that is not of order one passes."""
        if verdict != Verdict.PASS or not expected.gauge_of:
            return ""
        size = SYMBOLS[self.study.axis]
        power = expected.bound
        return (
            f"right at {size}^{power:.3g}: the plan writes the factor of another layer into"
            f" {expected.gauge_of} (gauge), as for a tied readout, whose own factor would also"
            " scale the embedding"
        )

    @property
    def _too_few(self) -> str:
        return (
            f"inconclusive: {len(self.study.sizes)} {self.study.axis}s; at least {FEW} are needed"
            " to tell a slope from a bend"
        )

    def _vanishing_gradients(self) -> set[str]:
        """Return the tensors whose gradient is rounding error."""
        observations = self.study.observations
        sizes = {}
        for name in observations.names(Quantity.GRADIENT):
            sizes[name] = observations.largest(name, Quantity.GRADIENT)
        vanishing = set()
        if sizes:
            median = sorted(sizes.values())[len(sizes) // 2]
            for name, size in sizes.items():
                if size < VANISHING * median or self._gradient_cancels(name):
                    vanishing.add(name)
        return vanishing

    def _gradient_cancels(self, name: str) -> bool:
        """Return whether the gradient of a bias cancels over tokens.

        This happens to a bias before batch norm: the gradients at the output add up to zero, where
        a random sum of N entries has sqrt(N) times their size.
        """
        module, _, tensor = name.rpartition(".")
        gradients = self.study.observations.at(name, Quantity.GRADIENT, 0)
        if tensor != "bias" or not gradients:
            return False
        arriving = self.study.observations.at(module, Quantity.OUTPUT_GRADIENT, 0)
        for run, gradient in gradients.items():
            if run not in arriving:
                return False
            terms = arriving[run].entries / gradient.entries
            if not gradient.rms < CANCELLED * arriving[run].rms * math.sqrt(terms):
                return False
        return True

    # --- SHRINKS ----------------------------------------------------------------------------------

    def _with_alignment(self, judgements: list[Judgement]) -> list[Judgement]:
        """Add the measured alignment to SHRINKS lines; FAIL those that it does not explain.

        Changes that shrink are less aligned than the rule assumes.
        """
        shrinks = any(line.verdict == Verdict.SHRINKS for line in judgements)
        if not shrinks or self.study.axis == "depth":
            return judgements
        measured = self.study.observations.alignment({})
        texts = _AlignmentTexts(measured, self._expectations.same_output)
        explained = []
        for line in judgements:
            if line.verdict == Verdict.SHRINKS:
                line = replace(line, cause=f"{line.cause}; {texts.sentence_about(line.module)}")
                if self._shrinks_too_much(line, measured):
                    line = replace(line, verdict=Verdict.FAIL)
            explained.append(line)
        return explained

    def _shrinks_too_much(self, line: Judgement, measured: MeasuredAlignment | None) -> bool:
        """Return whether the output shrinks by more than the missing alignment of its readout.

        True only for the last output of a model with a user's optimizer whose law holds from the
        first step.
        """
        study = self.study
        is_last_output = (
            line.module == ""
            and line.quantity == Quantity.CHANGE
            and line.step == study.observations.steps
        )
        if not (study.has_user_optimizer and is_last_output) or study.first_step:
            return False
        exponents = []
        for row in measured.role_rows if measured else ():
            if row["role"] == Role.READOUT and row["quantity"] in ("omega", "alpha"):
                exponents.append(row["exponent"])  # u belongs to a second-order term
        least = max(min(exponents, default=UNALIGNED), UNALIGNED)
        return line.high < line.predicted - (1 - least) - BOUNDARY

    # --- verdicts without fits --------------------------------------------------------------------

    def _judged_without_fits(self) -> list[Judgement]:
        judgements = []
        if self._schedule_fault:
            cause = f"{Reason.SCHEDULE}: {self._schedule_fault}"
            judgements.append(_failure(Quantity.SCHEDULE, cause, Reason.SCHEDULE))
        if self.study.no_growth:
            cause = f"{Reason.SAME_SHAPES}: every size gives the same shapes"
            judgements.append(_failure(Quantity.SHAPES, cause, Reason.SAME_SHAPES))
        return judgements

    # --- the whole --------------------------------------------------------------------------------

    def _verdict(self, judgements: list[Judgement]) -> Verdict:
        """Return the verdict on the whole check."""
        if any(line.verdict == Verdict.FAIL for line in judgements):
            return Verdict.FAIL
        if self.study.troubles or _predicted_growth(judgements):
            return Verdict.UNCLEAR
        last = self.study.observations.steps
        changes = [line for line in judgements if line.quantity == Quantity.CHANGE]
        clear = 0
        for line in changes:
            if line.module == "" and line.step == last and line.verdict == Verdict.UNCLEAR:
                return Verdict.UNCLEAR  # the output of the whole model
            clear += line.verdict in (Verdict.PASS, Verdict.SHRINKS)
        if clear > len(changes) / 2:
            return Verdict.PASS
        return Verdict.UNCLEAR

    def _reasons_for_unclear(self, judgements: list[Judgement]) -> list[str]:
        predicted_growth = _predicted_growth(judgements)
        if self.study.troubles or predicted_growth:
            return [*_first_few(self.study.troubles), *predicted_growth[:1]]
        if len(self.study.sizes) < FEW:
            return [with_code(self._too_few, "too-few-sizes")]
        unclear = [line for line in judgements if line.verdict == Verdict.UNCLEAR]
        changes = [line for line in unclear if line.quantity == Quantity.CHANGE]
        if not unclear:
            return [with_code("inconclusive: no exponent could be fitted", "nothing-fitted")]
        first = (changes or unclear)[0]
        reason = f"{first.module or 'the model'}: {first.cause}"
        if first.reason == Reason.FROZEN:
            return [with_code(reason, "frozen-tensor")]
        return [with_code(reason, "noisy-exponents")]


class _AlignmentTexts:
    """Sentences about the measured alignment, by module."""

    def __init__(self, measured: MeasuredAlignment | None, same_output: dict[str, str]):
        self._same_output = same_output
        self._by_module: dict[str, dict[str, float]] = {}
        self._hidden: dict[str, float] = {}
        self._measured = measured is not None and not measured.exponents.empty
        if measured is None or not self._measured:
            return
        for row in measured.layer_rows:
            self._by_module.setdefault(row["module"], {})[row["quantity"]] = row["exponent"]
        for row in measured.role_rows:
            if row["role"] == Role.HIDDEN:
                self._hidden[row["quantity"]] = row["exponent"]

    def sentence_about(self, module: str) -> str:
        """Return the alignment of a matrix; for other modules, that of hidden matrices."""
        if not self._measured:
            return (
                "alignment was not measured: this needs 3 sizes, 8 tokens, and modules that apply"
                " one matrix each"
            )
        maker = self._same_output.get(module, "")
        exponents = self._by_module.get(module) or self._by_module.get(maker) or self._hidden
        values = ", ".join(f"{kind} {exponent:.2f}" for kind, exponent in exponents.items())
        return f"alignment measured: {values}"


def _failure(quantity: Quantity, cause: str, reason: Reason) -> Judgement:
    """Return a failure of the whole study, without a fit."""
    return Judgement("", quantity, 0, NAN, NAN, NAN, NAN, Verdict.FAIL, cause, "", reason)


def _predicted_growth(judgements: list[Judgement]) -> list[str]:
    """Describe growth that the rule itself predicts and that is not visible yet."""
    lines = []
    for line in judgements:
        if line.verdict == Verdict.UNCLEAR and line.reason == Reason.PREDICTED_GROWTH:
            text = f"{line.module or 'the model'}: {line.cause}"
            lines.append(with_code(text, "rule-predicts-growth"))
    return lines


def _first_few(troubles: Sequence[str]) -> list[str]:
    if len(troubles) <= MOST_TROUBLES:
        return [*troubles]
    return [*troubles[:MOST_TROUBLES], f"and {len(troubles) - MOST_TROUBLES} more of this kind"]


# --- untrained tensors ----------------------------------------------------------------------------


def _untrained_tensors(study: StudyResult) -> tuple[list[Judgement], list[str]]:
    """Judge the tensors that no step of any run has changed, except those in `frozen`.

    Return the judgements, and remarks on tensors that need not be trained.
    """
    judgements: list[Judgement] = []
    remarks: list[str] = []
    observations = study.observations
    if not observations.steps:
        return judgements, remarks
    for name, item in inventory(study.largest).items():
        if observations.largest(observations.key(name), Quantity.UPDATE) > 0:
            continue
        if any(fnmatch(name, pattern) for pattern in study.frozen):
            continue
        verdict, reason = _reason_untrained(study, item)
        if verdict is None:
            remarks.append(with_code(f"{name} {reason}", "untrained-tensor"))
            continue
        cause = f"{Reason.FROZEN}: {reason}; if this is intended, pass frozen=({name!r},)"
        judgements.append(
            Judgement(
                name, Quantity.UPDATE, 0, NAN, NAN, NAN, NAN, verdict, cause, "", Reason.FROZEN
            )
        )
    return judgements, remarks


def _reason_untrained(study: StudyResult, item: Item) -> tuple[Verdict | None, str]:
    """Return the verdict and the reason; without a verdict, the reason is only noted."""
    observations = study.observations
    if not item.tensor.requires_grad:
        if _is_table(study, item):
            return None, "is a constant table and is not trained"
        return Verdict.FAIL, "requires_grad is False"
    gradient = observations.largest(observations.key(item.name), Quantity.GRADIENT)
    if math.isnan(gradient):
        if _in_called_leaf(study, item):
            return Verdict.FAIL, "no gradient reaches it"
        return None, "is not used in training"
    if gradient == 0:
        return Verdict.UNCLEAR, "its gradient is zero in all of these steps"
    rates = []
    for run in observations.runs:
        for rates_now in run.rates:
            if item.name in rates_now:
                rates.append(rates_now[item.name])
    if not rates:
        return Verdict.FAIL, "it has a gradient, but no step changes it: is it in the optimizer?"
    if not any(rates):
        return Verdict.UNCLEAR, "its learning rate is zero in all of these steps"
    return None, "has updates that are too small to change it"


def _in_called_leaf(study: StudyResult, item: Item) -> bool:
    """Return whether a module without children holds the tensor and was called."""
    observations = study.observations
    modules = modules_by_name(study.largest)
    for place in item.places:
        called = observations.at(observations.key(place.module), Quantity.OUTPUT, 0)
        if called and not list(modules[place.module].children()):
            return True
    return False


def _is_table(study: StudyResult, item: Item) -> bool:
    """Return whether a tensor is a constant table: the same for every seed, not one value.

    Tables of sinusoids, for example, are not trained.
    """
    weights = study.observations.at(study.observations.key(item.name), Quantity.WEIGHT, 0)
    seeds = {seed for _, seed in weights}
    by_size: dict[int, set[Moments]] = {}
    for (size, _), moments in weights.items():
        by_size.setdefault(size, set()).add(moments)
    same = len(seeds) > 1 and all(len(moments) == 1 for moments in by_size.values())
    return same and bool(item.tensor.min() != item.tensor.max())
