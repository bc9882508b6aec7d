"""Train trials one after another, each in a world of one process (stand-alone runs).

Stacked training must give the same losses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch

from orderone.seeding import preserved, seeded, set_seed
from orderone.sweeping.job import Job
from orderone.sweeping.member import Member
from orderone.sweeping.shared_state import SharedState
from orderone.sweeping.trial import Trial
from orderone.sweeping.trial_checkpoint import StartAgain, TrialCheckpoint
from orderone.training.code_state import fresh_caches
from orderone.training.compiled_pass import CompilableStep, PassCompiler
from orderone.training.fresh_loss import fresh_loss
from orderone.training.loop import LossReport, TrainingLoop
from orderone.training.outcome import Outcome, make_outcome
from orderone.training.replayed_step import ReplayedStep
from orderone.training.step import Step, current_rates
from orderone.training.world import single_process

# updates done, recent losses by key -> keys of the trials to stop
# Kinds of devices on which compiled passes of single models were measured to pay. On a CPU they do
# not (`benchmarks/compiled_alone.py`); on a GPU this is not known yet.
COMPILED_BY_DEFAULT: tuple[str, ...] = ()
Report: TypeAlias = Callable[[int, Mapping[str, float]], "set[str]"]


WORTH_CAPTURING = 50  # batches of a training; a capture takes as long as a few steps


def capture_pays(job: Job) -> bool:
    """Return whether to capture a step as a CUDA graph."""
    if job.graphs is not None:
        return job.graphs and torch.device(job.device).type == "cuda"
    batches = job.steps * job.accumulate
    return torch.device(job.device).type == "cuda" and batches >= WORTH_CAPTURING


def run_alone(
    job: Job, trials: Iterable[Trial], report: Report | None = None, checkpoint: Path | None = None
) -> Iterator[Outcome]:
    """Yield the outcome of each trial when it ends.

    If a trial raises, its outcome has the error. Ctrl-C leaves a checkpoint in the folder
    `checkpoint`.
    """
    trials = list(trials)
    passes: dict[str, int] = {}  # of all trials with the same program
    for trial in trials:
        number = job.settings_of(trial).steps * job.accumulate
        passes[trial.program] = passes.get(trial.program, 0) + number
    for trial in trials:
        try:
            yield _train(job, trial, report, checkpoint, passes[trial.program])
        except Exception as error:  # the user's code may raise anything
            yield Outcome(trial.key, error=describe(error))


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def is_device_error(described: str) -> bool:
    """Return whether a GPU failed: it then refuses all later work of the process."""
    return described.startswith(f"{torch.AcceleratorError.__name__}:")


def _train(
    job: Job, trial: Trial, report: Report | None, folder: Path | None, passes: int
) -> Outcome:
    loop, checkpoint = prepare(job, trial, report, folder)
    compiler = _compiler(job, trial, passes)
    _let_compile(loop, compiler)
    shared = SharedState(job, trial, loop)
    # dropout does not depend on what was built before, nor do caches
    with seeded(trial.seed), fresh_caches(loop.step.module, loop.step.loss_function):
        if checkpoint is not None:
            try:
                checkpoint.restore(loop)
            except StartAgain:
                loop, checkpoint = prepare(job, trial, report, folder)
                _let_compile(loop, compiler)
                set_seed(trial.seed)
        with shared.watched(loop, outputs=compiler is None):
            loop.run(checkpoint)
    facts: dict[str, object] = {
        "engine": "alone",
        "device": str(loop.world.device),
        "graph": isinstance(loop.step, ReplayedStep) and loop.step.replays,
    }
    if compiler is not None and compiler.decision is not None:
        facts["compiled"] = compiler.compiles
        facts["compile choice"] = compiler.decision.reason
    changes = shared.changes(loop, lambda first: _beginning(job, first))
    if changes is not None:
        facts["shared state"] = changes
    if loop.step.scale is not None:
        facts["skipped updates"] = int(loop.step.scale.skipped)
    return make_outcome(
        trial.key,
        loop.losses,
        loop.evaluation,
        precision=job.precision,
        diverged_at=loop.diverged_at,
        stopped_at=loop.stopped_at,
        seconds=loop.seconds,
        facts=facts,
    )


def _let_compile(loop: TrainingLoop, compiler: PassCompiler | None) -> None:
    if compiler is not None and isinstance(loop.step, CompilableStep):
        loop.step = replace(loop.step, compiler=compiler)


def prepare(
    job: Job, trial: Trial, report: Report | None, folder: Path | None
) -> tuple[TrainingLoop, TrialCheckpoint | None]:
    """Build the model of a trial; return its training before the first step, and its checkpoint."""
    kind = CompilableStep
    if capture_pays(job):
        kind = ReplayedStep
    step = make_step(job, trial, job.member(trial), kind)
    loop = TrainingLoop(step, check_each_loss=True, report=_loss_report(trial, report))
    if folder is None:
        return loop, None
    return loop, _checkpoint(job, trial, folder)


def _compiler(job: Job, trial: Trial, passes: int) -> PassCompiler | None:
    """Return what may compile the passes of a trial; None if they must not be compiled.

    The choice depends on measured times, and compiled passes round otherwise. So `deterministic`
    leaves it to the user.
    """
    if job.compile is False:
        return None
    by_default = torch.device(job.device).type in COMPILED_BY_DEFAULT and not job.deterministic
    if job.compile is None and not by_default:
        return None

    def other() -> Step:
        return make_step(job, trial, job.member(trial), Step)

    return PassCompiler(trial.program, passes, bool(job.compile), other, job.compile_decisions)


def _checkpoint(job: Job, trial: Trial, folder: Path) -> TrialCheckpoint:
    """Return the checkpoint of a trial; the first of an architecture checks that it is complete."""

    def other() -> TrainingLoop:
        with preserved():
            return _beginning(job, trial)

    known, lost = job.resume_checks.get(trial.program, (False, None))
    return TrialCheckpoint(
        folder,
        trial.key,
        job.warned,
        other=None if known else other,
        lost=lost,
        checked=lambda found: job.resume_checks.update({trial.program: (True, found)}),
    )


def _beginning(job: Job, trial: Trial) -> TrainingLoop:
    """Return the training of a trial before its first update, not compiled or captured."""
    return TrainingLoop(make_step(job, trial, job.member(trial), Step), check_each_loss=True)


def make_step(job: Job, trial: Trial, member: Member, kind: type[Step]) -> Step:
    """Return the update of a stand-alone run."""
    optimizer = member.optimizer()
    return kind(
        world=single_process(torch.device(job.device)),
        settings=job.settings_of(trial),
        module=member.model,
        forward=member.model,
        optimizer=optimizer,
        rates=current_rates(optimizer),
        source=job.source(trial),
        data_seed=member.data_seed,
        loss_function=fresh_loss(job.loss or job.data.loss),
        scale=job.settings.loss_scale(torch.device(job.device)),
    )


def _loss_report(trial: Trial, report: Report | None) -> LossReport | None:
    """Return the report of a sweep in the form that one training loop calls."""
    if report is None:
        return None

    def stops(done: int, loss: float) -> bool:
        return trial.key in report(done, {trial.key: loss})

    return stops
