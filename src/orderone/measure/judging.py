"""From records to verdicts: every fit beside its expectation, then what no fit shows, then the
whole."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from orderone.measure.adjusted_expectations import Outlook
from orderone.measure.cancellation import without_cancellation
from orderone.measure.causes import Context, likely_causes
from orderone.measure.check import Check, Judgement
from orderone.measure.fit import Fit
from orderone.measure.prediction import Expected
from orderone.measure.runs import ratios_kept
from orderone.measure.study import Study
from orderone.measure.untrained_tensors import still
from orderone.measure.verdict import BOUNDARY, FAIL, PASS, SHRINKS, UNCLEAR, judge
from orderone.observe.inventory import inventory

FEW = 3  # sizes: with fewer, a bend looks like a slope
VANISHING = 1e-6  # of the usual gradient: rounding (softmax does not feel a bias of its keys)
CANCELLED = 1e-4  # of a random sum: rounding
NEGLIGIBLE = 1e-2  # of the gradient: a penalty that moves nothing
UPDATES = ("update", "relative update")
UNALIGNED = 0.5  # the exponent of alignment where nothing lines up
NAN = math.nan


@dataclass
class Judge:
    study: Study
    confidence: float

    def judge(self) -> Check:
        study = self.study
        if not study.schedule and not all(
            ratios_kept(run.rates) for run in study.observations.runs
        ):
            study.schedule = (
                "learning rates do not all change by one factor from step to step (eta_min,"
                " max_lr?)"
            )
        judgements = [
            *self._explained(without_cancellation(self._fitted())),
            *self._frozen(),
            *self._whole(),
        ]
        context = Context(
            rule=study.rule,
            tied=self._tied,
            no_growth=study.no_growth,
            base_is_target=self._base_is_target,
            schedule=study.schedule,
            undone=study.undone,
            in_depth=study.axis == "depth",
            unscaled_branches=self._unscaled_branches,
            one_rate=self._one_rate,
            wrong_start=self.outlook.wrong_start,
            rate_is_right=self.outlook.rate_is_right,
        )
        verdict = self._verdict(judgements)
        causes = [cause.replace("n^", self._symbol) for cause in likely_causes(judgements, context)]
        if verdict == UNCLEAR:
            causes += self._why_unclear(judgements)
        notes = [*_few(study.troubles), *study.notes]
        return Check(
            study.observations,
            judgements,
            verdict,
            causes,
            notes,
            study.provenance(),
            study.interrupted,
        )

    @cached_property
    def outlook(self) -> Outlook:
        return Outlook(self.study)

    # --- fits -------------------------------------------------------------------------------------

    def _asked(self) -> list[tuple[str, int]]:
        """Quantities and steps. Changes are judged after the first step and in the end: a task that
        is learnt makes them fade. Updates are judged where they begin, which differs from tensor to
        tensor."""
        last = self.study.observations.steps
        at_start = ["output", "output gradient", "gradient", "decay", "penalty"] + (
            [] if self.study.own else ["weight"]
        )
        asked = [(quantity, 0) for quantity in at_start]
        if last:
            asked += [
                (quantity, step)
                for quantity in ("change", "score change")
                for step in sorted({1, last})
            ]
            asked += [
                ("output", last),
                *((quantity, step) for quantity in UPDATES for step in range(last)),
            ]
        return asked

    def _fitted(self) -> list[Judgement]:
        found = []
        vanishing = self._vanishing
        seen = self.study.observations
        first = self.study.first_step
        for (name, quantity, step), fit in seen.fits(self._asked(), self.confidence):
            if quantity == "penalty" and seen.largest(name, quantity) < NEGLIGIBLE:
                continue
            if name in vanishing or (
                quantity in UPDATES and step != seen.begins(name, since=first)
            ):
                continue
            expected = self.outlook.of(name, quantity, step)
            if expected is not None and not (
                math.isnan(expected.exponent) and math.isinf(expected.allowed)
            ):
                found.append(self._judged(name, quantity, step, fit, expected))
        return found

    def _judged(
        self, name: str, quantity: str, step: int, fit: Fit, expected: Expected
    ) -> Judgement:
        verdict, cause = judge(fit, expected, quantity)
        cause = cause.replace("n^", self._symbol).replace("at size", f"at {self.study.axis}")
        if len(self.study.sizes) < FEW and verdict != FAIL:
            verdict = UNCLEAR
            cause = self._too_few
        if math.isnan(expected.exponent):
            predicted = expected.allowed
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
            verdict,
            cause,
            expected.role,
        )

    @property
    def _symbol(self) -> str:
        return "n^" if self.study.axis == "width" else "L^"

    @property
    def _too_few(self) -> str:
        return (
            f"too few {self.study.axis}s: {len(self.study.sizes)}, and {FEW} are needed to tell a"
            " slope from a bend"
        )

    @cached_property
    def _vanishing(self) -> set[str]:
        """Tensors whose gradient is rounding and nothing else."""
        seen = self.study.observations
        sizes = {name: seen.largest(name, "gradient") for name in seen.names("gradient")}
        usual = sorted(sizes.values())[len(sizes) // 2] if sizes else 0.0
        return {
            name for name, size in sizes.items() if size < VANISHING * usual or self._cancels(name)
        }

    def _cancels(self, name: str) -> bool:
        """A bias before batch norm: what arrives at the output adds up to nothing over tokens,
        where a random sum of N entries has sqrt(N) times their size."""
        seen, (module, _, tensor) = self.study.observations, name.rpartition(".")
        arriving = seen.at(module, "output gradient", 0)
        sums = seen.at(name, "gradient", 0)
        return (
            tensor == "bias"
            and bool(sums)
            and all(
                at in arriving
                and m.rms
                < CANCELLED * arriving[at].rms * math.sqrt(arriving[at].entries / m.entries)
                for at, m in sums.items()
            )
        )

    # --- what shrinks -----------------------------------------------------------------------------

    def _explained(self, judgements: list[Judgement]) -> list[Judgement]:
        """Changes that shrink are less aligned than theory allows: by how much was measured."""
        if not any(j.verdict == SHRINKS for j in judgements) or self.study.axis == "depth":
            return judgements
        told = self._alignments()
        explained = [
            replace(j, cause=f"{j.cause}; {told(j.module)}") if j.verdict == SHRINKS else j
            for j in judgements
        ]
        return [replace(j, verdict=FAIL) if self._unexplained(j) else j for j in explained]

    def _unexplained(self, j: Judgement) -> bool:
        """The output of a model that was scaled elsewhere shrinks by more than its readout falls
        short of alignment, and not because its first steps follow another law."""
        last = j.module == "" and j.quantity == "change" and j.step == self.study.observations.steps
        if not (self.study.own and last and j.verdict == SHRINKS) or self.study.first_step:
            return False
        found = self.study.observations.alignment({})
        if found is None:
            readout = []
        else:
            readout = [r for r in found.by_role.to_dict("records") if r["role"] == "readout"]
        terms = [
            row["exponent"] for row in readout if row["quantity"] in ("omega", "alpha")
        ]  # u is of second order
        least = max(min(terms, default=UNALIGNED), UNALIGNED)
        return j.high < j.predicted - (1 - least) - BOUNDARY

    def _alignments(self) -> Callable[[str], str]:
        """For a module, its own alignment if it is a matrix, and that of hidden matrices
        otherwise."""
        found = self.study.observations.alignment({})
        if found is None or found.exponents.empty:
            return lambda module: (
                "alignment was not measured: it takes 3 sizes, 8 tokens, and matrices in their own"
                " modules"
            )
        own: dict[str, dict[str, float]] = {}
        for row in found.exponents.to_dict("records"):
            own.setdefault(row["module"], {})[row["quantity"]] = row["exponent"]
        hidden = {
            r["quantity"]: r["exponent"]
            for r in found.by_role.to_dict("records")
            if r["role"] == "hidden"
        }

        def told(module: str) -> str:
            kinds = own.get(module) or own.get(self.outlook.same_output.get(module, "")) or hidden
            return (
                f"alignment measured: {', '.join(f'{kind} {x:.2f}' for kind, x in kinds.items())}"
            )

        return told

    # --- what no fit shows ------------------------------------------------------------------------

    def _frozen(self) -> list[Judgement]:
        """Tensors that no run ever moved."""
        return [
            Judgement(name, "update", 0, NAN, NAN, NAN, NAN, verdict, why, "")
            for name, verdict, why in still(self.study)
        ]

    def _whole(self) -> list[Judgement]:
        found = []
        if self.study.schedule:
            found.append(("schedule", f"schedule: {self.study.schedule}"))
        if self.study.no_growth:
            found.append(("shapes", "base equals target: every size gives the same shapes"))
        return [
            Judgement("", quantity, 0, NAN, NAN, NAN, NAN, FAIL, cause, "")
            for quantity, cause in found
        ]

    # --- the whole --------------------------------------------------------------------------------

    def _verdict(self, judgements: list[Judgement]) -> str:
        if any(j.verdict == FAIL for j in judgements):
            return FAIL
        changes = [j for j in judgements if j.quantity == "change"]
        told = sum(j.verdict in (PASS, SHRINKS) for j in changes)
        last = [
            j for j in changes if j.module == "" and j.step == self.study.observations.steps
        ]  # of the model itself
        if (
            self.study.troubles
            or self._foretold(judgements)
            or any(j.verdict == UNCLEAR for j in last)
        ):
            return UNCLEAR
        return PASS if told > len(changes) / 2 else UNCLEAR

    def _foretold(self, judgements: list[Judgement]) -> list[str]:
        """Growth that the rule itself predicts, and that does not show yet."""
        told = [j for j in judgements if j.verdict == UNCLEAR and "rule itself" in j.cause]
        return [f"{j.module or 'the model'}: {j.cause}" for j in told]

    def _why_unclear(self, judgements: list[Judgement]) -> list[str]:
        if self.study.troubles or self._foretold(judgements):
            return [*_few(self.study.troubles), *self._foretold(judgements)[:1]]
        if len(self.study.sizes) < FEW:
            return [self._too_few]
        unclear = sorted(
            (j for j in judgements if j.verdict == UNCLEAR), key=lambda j: j.quantity != "change"
        )
        return [f"{j.module or 'the model'}: {j.cause}" for j in unclear[:1]] or [
            "nothing could be measured"
        ]

    # --- what it was about ------------------------------------------------------------------------

    @property
    def _tied(self) -> bool:
        return any(len(item.places) > 1 for item in inventory(self.study.large).values())

    @property
    def _base_is_target(self) -> bool:
        given = self.study.given
        return (
            given is not None
            and not self.study.no_growth
            and all(r.shape == r.base_shape for r in given.rows)
        )

    @property
    def _one_rate(self) -> bool:
        """One learning rate for all tensors of all sizes, where the rule has several."""
        study = self.study
        given = {
            rate
            for run in study.observations.runs
            for rates in run.rates[:1]
            for rate in rates.values()
        }
        if study.plans:
            asked = {row.lr for row in study.plans[study.sizes[-1]].rows}
        else:
            asked = set()
        return study.own and len(given) == 1 and len(asked) > 1

    @property
    def _unscaled_branches(self) -> bool:
        study = self.study
        branches = study.family is not None and bool(study.family.seen.branches)
        return study.axis == "depth" and branches and study.asked.get("depth") is None


def _few(told: list[str], most: int = 3) -> list[str]:
    if len(told) <= most:
        return told
    return [*told[:most], f"and {len(told) - most} more like these"]
