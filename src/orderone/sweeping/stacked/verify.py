"""Proof that a stack trains its members as stand-alone runs do, before it is trusted.

What may differ between models of one shape cannot be listed: a tensor that a function has captured,
a hook, a number in an object. So two members, those whose settings differ most, take their first
two steps both ways, with their data, optimizers, precision and schedule. The models are built for
this and thrown away; random generators and the order of the data are as if nothing had happened.

1. Differences within `ROUNDING` units of rounding prove the stack.
2. Otherwise they are compared with what one unit in the parameters and inputs does to a stand-alone
   run. A deep network, or a gradient that is zero but for rounding, has large ones. Stand-alone
   runs must be repeatable for this. A unit is that of the coarsest precision that the model casts
   its numbers to (`Casts`).
3. Otherwise the same is done in double precision. A ReLU at its kink, or a product in
   TensorFloat32, is rounding that vanishes there, up to `TINY`; a captured tensor is not.

In half precision, 3 always has to hold, and a stack may be no farther from the stand-alone run than
a second one with other kernels (`OtherKernels`).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from orderone.seeding import preserved
from orderone.sweeping.job import Job
from orderone.sweeping.member import Member
from orderone.sweeping.sequential import make_step
from orderone.sweeping.stacked.feed import stacked_batches
from orderone.sweeping.stacked.making import make_stack
from orderone.sweeping.trial import Trial
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.code_state import global_texts
from orderone.training.loss_scale import START
from orderone.training.source import Batch, moved
from orderone.training.stacked.attributes import different_count
from orderone.training.stacked.culprit import first_deviating_module
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.inner_precision import Casts
from orderone.training.stacked.other_kernels import OtherKernels
from orderone.training.stacked.proof import (
    HALF,
    ROUNDING,
    Difference,
    Differences,
    Place,
    differences,
)
from orderone.training.stacked.ways import (
    MakeStep,
    MemberData,
    OneByOne,
    Together,
    rounded_otherwise,
)
from orderone.training.step import Step

STEPS = 2
SEED = 0  # of random draws of the first of the pair
FAR = 1000  # from there to the seed of the second
NUDGES = 2  # stand-alone runs that round otherwise
# largest relative difference that counts as rounding if double precision has none: a ReLU that
# falls on the other side changes the gradient of its row by one sample of a batch
KINKS = 0.05
# Relative difference that is rounding in double precision, for a training in a lower one: a
# hundredth of the rounding of float32. A sum that nearly cancels, such as the gradient of a trained
# temperature, has more than `ROUNDING` units of it.
TINY = 1e-9
OTHER_DRAWS = 9  # passes with other numbers of numpy and `random`
DRAWS_ELSEWHERE = (
    "draws numbers from numpy's global generator or from Python's random, which all members of a"
    " stack would share: draw with torch, for example torch.rand(())"
)
NEAR = 2.0  # times the distance of two stand-alone runs in half precision
HALVINGS = 32  # of the scale of the loss, from 2^16 down to 2^-16
MARGIN = 4.0  # gradients of the second step may be larger
HALF_UNITS = 4.0  # units of half precision that are rounding in any case


@dataclass(frozen=True)
class Proof:
    """How a stack was proved equal to stand-alone runs; `how` is "" if it was not."""

    how: str
    loss: float = 0.0  # largest relative differences
    gradient: float = 0.0
    update: float = 0.0
    draws: bool = False  # whether the models draw random numbers
    pair: tuple[str, ...] = ()  # keys of the trials that took steps both ways
    last: str = ""  # of the last step, which one member takes alone: agrees, unclear or not checked

    def fact(self) -> dict[str, object]:
        """Return the proof as JSON, as it is stored with the outcome of a trial."""
        fact: dict[str, object] = asdict(self)
        fact["pair"] = list(self.pair)
        return fact

    @staticmethod
    def read(fact: Mapping[str, Any]) -> "Proof":
        return Proof(**{**fact, "pair": tuple(fact["pair"])})


NOT_PROVED = Proof("")


@dataclass(frozen=True)
class FirstBatches:
    """Batches of the first steps, which were read for the proof, for the training to use."""

    by_step: dict[int, list[Batch]]

    def take(self, step: int) -> list[Batch] | None:
        return self.by_step.pop(step, None)


def verify(job: Job, trials: Sequence[Trial]) -> tuple[Proof, FirstBatches]:
    """Prove that a stack of these trials equals stand-alone runs.

    Raise NotStackable, with the first module that deviates, if it does not.
    """
    steps = proved_steps(job, trials)
    with preserved():
        read = read_first(job, trials, steps)
        proof = _Verification(job, read).run()
    pair = tuple(trial.key for trial in read.pair)
    return replace(proof, pair=pair), FirstBatches(read.stacked)


def proved_steps(job: Job, trials: Sequence[Trial]) -> int:
    """Return the number of steps that the pair takes both ways."""
    return min(STEPS, min(job.settings_of(trial).steps for trial in trials))


# --- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstData:
    """Data of the first steps: of the whole stack, and of each of the pair alone."""

    pair: tuple[Trial, Trial]
    rows: list[int]  # of the pair in the stack
    stacked: dict[int, list[Batch]]
    of_members: list[MemberData]
    held_out: list[Batch]
    factors: list[float]
    seeds: list[int]  # of random draws, for each of the pair; equal if the whole stack has one seed

    @property
    def one_seed(self) -> bool:
        return self.seeds[0] == self.seeds[1]

    def of_pair(self) -> list[list[Batch]]:
        """Return copies of the batches of the pair in the stack, by step."""
        steps: list[list[Batch]] = []
        for batches in self.stacked.values():
            steps.append([_rows(batch, self.rows) for batch in batches])
        return steps


def pair_of(trials: Sequence[Trial]) -> tuple[Trial, Trial]:
    """Return the first trial, and the last of those that differ from it most.

    A trial with another seed comes first: models of one seed may hold the same random values.
    """
    first = trials[0]

    def differences_to_first(trial: Trial) -> tuple[bool, int]:
        names = {*first.settings, *trial.settings}
        different = sum(first.get(name) != trial.get(name) for name in names)
        return trial.seed != first.seed, different

    return first, max(reversed(trials), key=differences_to_first)


def read_first(job: Job, trials: Sequence[Trial], steps: int) -> FirstData:
    """Read what the training will read, in its order, then the data of each of the pair.

    Raise NotStackable if a batch is another one when it is read a second time.
    """
    pair = pair_of(trials)
    source = job.source(trials[0])
    seeds = [trial.data_seed for trial in trials]
    stacked = {step: stacked_batches(job, source, step, seeds) for step in range(steps)}
    rows = [list(trials).index(trial) for trial in pair]
    held_out = list(source.held_out()[:1])
    of_members: list[MemberData] = []
    for row, trial in zip(rows, pair, strict=True):
        batches: list[Batch] = []
        for number in range(steps * job.accumulate):
            batch = source.at(number, trial.data_seed)
            step, part = divmod(number, job.accumulate)
            _must_be_equal(job, batch, stacked[step][part], row, number)
            batches.append(tree_map(_copy, batch))  # a function may reuse its tensors
        of_members.append(MemberData(batches, held_out))
    factor = job.settings_of(pair[0]).factor
    factors = [factor(step) for step in range(steps)]
    one_seed = all(trial.seed == trials[0].seed for trial in trials)
    proof_seeds = [SEED, SEED if one_seed else SEED + FAR]
    return FirstData(pair, rows, stacked, of_members, held_out, factors, proof_seeds)


def _copy(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _rows(batch: Batch, rows: Sequence[int]) -> Batch:
    return tree_map(lambda x: x[list(rows)] if isinstance(x, Tensor) else x, batch)


def _must_be_equal(job: Job, batch: Batch, stacked: Batch, member: int, number: int) -> None:
    """Raise NotStackable if a stand-alone run reads another batch than the stack."""
    alone = tree_leaves(moved(batch, torch.device(job.device), job.precision))
    together = tree_leaves(stacked)
    same = len(alone) == len(together)
    for x, y in zip(alone, together, strict=False):
        if isinstance(x, Tensor):
            same = same and isinstance(y, Tensor) and _same_values(x, y[member])
    if not same:
        raise NotStackable(
            f"data: batch {number} had other values when it was read a second time, so members of a"
            " stack would get other data than stand-alone runs; make it depend only on the step and"
            " the seed",
            "data-not-repeatable",
            argument="data",
        )


def _same_values(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return bool(((x == y) | ((x != x) & (y != y))).all())


def shared_texts(job: Job, step: Step) -> dict[str, str]:
    """Return the state that the code of a training shares with other trainings, by name, as text.

    A loss that is a function keeps state for all; of an object, each training has a copy.
    """
    loss = step.loss_function
    return global_texts(step.module, *([loss] if loss is (job.loss or job.data.loss) else []))


# --- the verification -----------------------------------------------------------------------------


class _Verification:
    """Trains the pair both ways; each way gets new models."""

    def __init__(self, job: Job, read: FirstData):
        self.job = job
        self.read = read
        self.of_pair: list[list[Batch]] = read.of_pair()
        self.steps: int = len(self.of_pair)
        self.loss_scale: float | None = None  # in float16, one at which gradients are finite

    def run(self) -> Proof:
        """Return the proof; raise NotStackable if there is none."""
        alone, together = self._ways(self.job)
        proof = self._proof(alone, together)
        if alone.drew_elsewhere and not self.read.one_seed:
            self._must_not_use_draws_elsewhere()
        different = different_count(alone.step_of(0).module, together.stack.program.model)
        if different is not None:
            raise NotStackable(
                f"two members took {self.steps} steps in a stack and alone, and {different}: a"
                " stack runs code of the model more or less often; trained one after another",
                "stack-deviates",
            )
        self._must_not_change_globals(alone)
        return proof

    def _must_not_change_globals(self, alone: OneByOne) -> None:
        """Raise NotStackable if every pass changes something that all models share.

        A stack would change it once where stand-alone runs change it once each.
        """
        before = shared_texts(self.job, alone.step_of(0))
        alone.gradients(self.steps - 1)
        for name, text in shared_texts(self.job, alone.step_of(0)).items():
            if before.get(name) != text:
                raise NotStackable(
                    f"{name} changes in every forward pass, and is neither a parameter nor a"
                    " buffer, so a stack has no copy of it for each member; trained one after"
                    " another",
                    "not-repeatable",
                )

    def _proof(self, alone: OneByOne, together: Together) -> Proof:
        half = self._half(together.stack.program.model)
        if half is not None:
            return self._in_half_precision(half, alone, together)
        found = differences(alone, together, self.steps)
        if not found.beyond():
            return proof_of(found, f"within {ROUNDING:g} units of rounding")
        left = self._beyond_nudges(self.job, found)
        if not left:
            return proof_of(found, "as near as a run with other rounding")
        near = all(x.relative <= KINKS for x in left)
        if near and self.job.precision != "float64" and self._left_in("float64") == []:
            return proof_of(found, "equal in double precision")
        raise self._refused(left[0], found, self.job)

    def _must_not_use_draws_elsewhere(self) -> None:
        """Raise NotStackable if numbers of numpy or `random` change a loss.

        In two steps, members may draw the same by chance, such as one of two branches.
        """
        losses: list[Tensor] = []
        for seed in range(OTHER_DRAWS):
            alone = self._alone(self._makers(self.job))
            alone.elsewhere = seed
            losses.append(alone.gradients(0)[0])
        first = losses[0]
        unit = ROUNDING * torch.finfo(first.dtype).eps
        for other in losses[1:]:
            if not torch.allclose(first, other, rtol=unit, atol=0.0, equal_nan=True):
                raise NotStackable(
                    f"the forward pass {DRAWS_ELSEWHERE}; trained one after another",
                    "draws-outside-torch",
                )

    def _half(self, model: nn.Module) -> torch.dtype | None:
        """Return the half precision that passes or parameters have, if there is one."""
        if self.job.settings.half is not None:
            return self.job.settings.half
        for p in model.parameters():
            if p.dtype in HALF:
                return p.dtype
        return None

    def _in_half_precision(self, half: torch.dtype, alone: OneByOne, together: Together) -> Proof:
        for precision in ("float64", "float32"):
            left = self._left_in(precision)
            if left:
                raise self._refused(left[0], None, replace(self.job, precision=precision))
            if left is not None:
                break
        if together.stack.scale is not None:
            self.loss_scale = self._settled_scale()
            together.stack.scale.scale.fill_(self.loss_scale)
        found = differences(alone, together, self.steps, half)
        others = self._alone(self._makers(self.job), OtherKernels())
        expected = differences(self._alone(self._makers(self.job)), others, self.steps, half)
        for difference in found:
            kind = difference.place.kind
            allowed = HALF_UNITS
            if difference.place in expected.found:
                allowed += NEAR * expected.found[difference.place].units
            if kind in ("update", "gradient", "buffer"):  # gradients are compared all together
                if kind == "update" or left is None:
                    allowed = ROUNDING
                else:
                    allowed = inf
            if not difference.units <= allowed:
                raise self._refused(difference, found, self.job)
        how = "as near as a run with other kernels"
        if left is not None:
            how = f"equal in {precision}, and {how}"
        return proof_of(found, how)

    def _left_in(self, precision: str) -> list[Difference] | None:
        """Return differences in another precision; None if the model cannot run in it."""
        job = replace(self.job, precision=precision)
        try:
            alone, together = self._ways(job)
            found = differences(alone, together, self.steps)
            if not found.beyond():
                return []
            left = self._beyond_nudges(job, found)
            if precision == "float64":
                return [difference for difference in left if not _tiny(difference)]
            return left
        except NotStackable as error:
            if error.code == "not-repeatable":
                raise
            return None
        except (RuntimeError, TypeError, ValueError):  # it insists on a data type
            return None

    # --- models -----------------------------------------------------------------------------------

    def _ways(self, job: Job) -> tuple[OneByOne, Together]:
        """Return both ways; a stack calls only its first model, so that the last serves both."""
        first, last = self.read.pair
        members = [job.member(first), job.member(last)]
        stack = make_stack(job, members)
        alone = [self._makers(job)[0], lambda: self._step(job, 1, members[1])]
        data: list[list[Batch]] = []
        device = torch.device(job.device)
        for batches in self.of_pair:
            data.append([moved(batch, device, job.precision) for batch in batches])
        held_out = [moved(batch, device, job.precision) for batch in self.read.held_out]
        return self._alone(alone), Together(
            stack, data, self.read.factors, self.read.seeds, held_out
        )

    def _alone(
        self, makers: Sequence[MakeStep], around: AbstractContextManager[object] | None = None
    ) -> OneByOne:
        return OneByOne(makers, self.read.seeds, around or nullcontext())

    def _makers(self, job: Job) -> list[MakeStep]:
        first, last = self.read.pair
        return [
            lambda: self._step(job, 0, job.member(first)),
            lambda: self._step(job, 1, job.member(last)),
        ]

    def _step(self, job: Job, k: int, member: Member) -> Step:
        step = make_step(job, self.read.pair[k], member, Step)
        if step.scale is not None and self.loss_scale is not None:
            step.scale.scale.fill_(self.loss_scale)
        return replace(step, source=self.read.of_members[k].source())

    def _settled_scale(self) -> float:
        """Return a scale of the loss at which both members have finite gradients.

        At the first scale of a training they may overflow, and the proof would compare nothing.
        """
        smallest = START
        for make in self._makers(self.job):
            step = make()
            assert step.scale is not None
            for _ in range(HALVINGS):
                step.backward(0)
                if step.unscale():
                    break
            smallest = min(smallest, float(step.scale.scale))
        return smallest / MARGIN

    def _beyond_nudges(self, job: Job, found: Differences) -> list[Difference]:
        """Return differences that are larger than those of runs that round otherwise.

        Runs that are not repeatable cannot say what rounding does. If the model computes in a
        coarser precision than that of the job, its units are those of this precision.
        """
        inner = self._inner_precision(job)
        again = differences(
            self._alone(self._makers(job)), self._alone(self._makers(job)), self.steps, inner
        ).beyond()
        if again:
            raise NotStackable(
                f"two stand-alone runs of the same trial differ: {_what(again[0].place)} by"
                f" {again[0].relative:.1g} of its size. The model uses something that changes from"
                " call to call, such as a global counter; trained one after another",
                "not-repeatable",
            )
        if inner is not None:
            found = differences(*self._ways(job), self.steps, inner)
        return found.beyond([self._nudged(job, nudges, inner) for nudges in range(NUDGES)])

    def _inner_precision(self, job: Job) -> torch.dtype | None:
        """Return the coarsest precision that a forward pass casts to, if it does."""
        casts = Casts()
        self._alone(self._makers(job), casts).gradients(0)
        return casts.coarsest

    def _nudged(self, job: Job, nudges: int, inner: torch.dtype | None) -> Differences:
        eps = 0.0 if inner is None else torch.finfo(inner).eps
        other = rounded_otherwise(self._makers(job), self.read.seeds, nudges, eps)
        return differences(self._alone(self._makers(job)), other, self.steps, inner)

    # --- reasons ----------------------------------------------------------------------------------

    def _refused(self, difference: Difference, found: Differences | None, job: Job) -> NotStackable:
        """Return the error, with the first module that deviates if a model has this precision."""
        alone, together = self._ways(job)
        module = first_deviating_module(alone, together)
        place = difference.place
        text = (
            f"two members took {self.steps} steps in a stack and alone, and {_what(place)}"
            f" differs by {difference.relative:.1g} of its size, which is more than"
            " rounding"
        )
        if module is not None:
            text += f"; {module}"
        elif place.kind == "gradient":
            text += "; all outputs agree, so it is the backward pass"
        elif place.kind == "update":
            text += "; gradients agree, so it is the update of the optimizer"
        if found is not None and found.drew and not found.same_draws:
            text += "; its random numbers could not be repeated"
        alone, together = self._ways(job)
        alone.same_elsewhere = True
        left = differences(alone, together, self.steps).beyond()
        if left or not alone.drew_elsewhere:
            return NotStackable(f"{text}; trained one after another", "stack-deviates")
        return NotStackable(
            f"{text}; the forward pass {DRAWS_ELSEWHERE}; trained one after another",
            "draws-outside-torch",
        )


def _tiny(difference: Difference) -> bool:
    overall = difference.overall * torch.finfo(torch.float64).eps
    return min(difference.relative, overall) <= TINY


def _what(place: Place) -> str:
    of_tensor = f" of {place.name}" if place.name else ""
    return f"the {place.kind}{of_tensor} at step {place.step}"


def proof_of(found: Differences, how: str, pair: tuple[str, ...] = ()) -> Proof:
    """Return the proof that these differences are."""
    return Proof(
        how,
        pair=pair,
        loss=found.worst("loss", "evaluation"),
        gradient=found.worst("gradient"),
        update=found.worst("update"),
        draws=found.drew,
    )
