"""The loop of a sweep: ask for trials, run those that are missing, keep what comes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from orderone.observe.inventory import shapes_of
from orderone.optimizers.table import name_in_label
from orderone.seeding import seeded
from orderone.sweeping.engine import Engine, groups, units
from orderone.sweeping.executors import Executor
from orderone.sweeping.job import Job
from orderone.sweeping.member import optimizer_options
from orderone.sweeping.progress import Progress, shown
from orderone.sweeping.pruning import Pruner
from orderone.sweeping.result import Interrupted, Sweep
from orderone.sweeping.samplers import Results, Sampler
from orderone.sweeping.store import Store
from orderone.sweeping.trial import Trial
from orderone.training import checkpoint as checkpoints
from orderone.training import interrupts
from orderone.training.outcome import Outcome


@dataclass
class Driver:
    job: Job
    sampler: Sampler
    pruning: Pruner | None
    store: Store | None
    executor: Executor
    stacked: bool | str
    quiet: bool
    results: dict[str, tuple[Trial, Outcome]] = field(default_factory=dict)
    asked: dict[str, Trial] = field(default_factory=dict)
    ran: int = 0

    def run(self) -> Sweep:
        self.recall()
        with (
            interrupts.deferred(),
            shown(self.sampler.total, self.job.steps, self.quiet) as progress,
        ):
            try:
                while trials := self.sampler.ask(self.results):
                    for trial in trials:
                        self.asked[trial.key] = trial
                    self.train(trials, progress)
            except KeyboardInterrupt:
                self.settle()
                raise Interrupted(self.result()) from None
        self.settle()
        return self.result()

    def recall(self) -> None:
        """What the store has. Failed trials are tried again; so are those that a pruner stopped, if
        there is none now."""
        if self.store is None:
            return
        self.store.describe(self.job.fingerprint, self.job.described)
        stored: Results = self.store.read(self.job.fingerprint)
        wanted = ["done", "diverged"]
        if self.pruning:
            wanted.append("stopped")
        self.results = {key: pair for key, pair in stored.items() if pair[1].status in wanted}
        checkpoints.remove_temporary(self.store.checkpoints)
        checkpoints.remove_finished(self.store.checkpoints, self.results)
        if self.pruning:
            for trial, outcome in self.results.values():
                self.pruning.remember(trial, outcome)

    def train(self, trials: list[Trial], progress: Progress) -> None:
        missing: list[Trial] = []
        for trial in trials:
            if trial.key in self.results:
                progress.skip(*self.results[trial.key])
            else:
                missing.append(trial)
        check_members(self.job, missing)
        if self.pruning:
            for trial in missing:
                self.pruning.start(trial)
        engine = Engine(self.job, self.folder, self.stacked)
        parts = units(missing, self.executor.workers, self.job.together, self.stacked)
        by_key = {trial.key: trial for trial in missing}
        for outcome in self.executor.run(
            engine, parts, lambda step, losses: self.report(step, losses, progress)
        ):
            self.keep(by_key[outcome.key], outcome)
            progress.finish(by_key[outcome.key], outcome)

    @property
    def folder(self) -> Path | None:
        if self.store is None:
            return None
        return self.store.checkpoints

    def report(self, step: int, losses: Mapping[str, float], progress: Progress) -> set[str]:
        progress.report(step, losses)
        if self.pruning:
            return self.pruning.report(step, losses)
        return set()

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        """In the store first; the checkpoint is needed until then."""
        self.results[trial.key] = (trial, outcome)
        self.ran += 1
        if self.pruning:
            self.pruning.finish(trial, outcome)
        if self.store:
            self.store.add(trial, outcome)
            self.clear()

    def clear(self) -> None:
        if self.store and not self.store.unsaved:
            finished = {key for key, (_, outcome) in self.results.items() if outcome.finished}
            checkpoints.remove_finished(self.store.checkpoints, finished)

    def settle(self) -> None:
        if self.store and self.store.flush():
            self.clear()
            if self.store.checkpoints.is_dir() and not any(self.store.checkpoints.iterdir()):
                self.store.checkpoints.rmdir()

    def result(self) -> Sweep:
        outcomes = {key: self.results[key][1] for key in self.asked if key in self.results}
        store_path = None
        if self.store:
            store_path = str(self.store.path)
        return Sweep(self.asked, outcomes, store_path, self._notes(outcomes), self.ran, self.job)

    def _notes(self, outcomes: Mapping[str, Outcome]) -> list[str]:
        """Return what failed, what could not be stacked, and what could not be stored."""
        failures: list[str] = []
        not_stacked: dict[object, None] = {}  # reasons, each once
        for key, outcome in outcomes.items():
            if outcome.error is not None:
                failures.append(f"{self.asked[key]}: {outcome.error}")
            elif "not stacked" in outcome.facts:
                not_stacked[outcome.facts["not stacked"]] = None
        notes = failures[:3]
        if len(failures) > 3:
            notes.append(f"and {len(failures) - 3} more failed")
        for reason in not_stacked:
            notes.append(f"trained one after another: {reason}")
        if self.store and self.store.unsaved:
            notes.append(
                f"{len(self.store.unsaved)} trials are not in {self.store.path}:"
                f" {self.store.trouble}"
            )
        return notes


def check_members(job: Job, trials: list[Trial]) -> None:
    """Before anything is trained: `build` gives the same tensors for every seed, and every rule can
    be put to them.

    The first and the last of a group are built here, the others are looked at when they are
    trained. What cannot even be built for some settings (heads that do not divide a width) is left
    to fail as a trial, unless nothing can.
    """
    by_architecture = groups(trials)
    troubles: list[Exception] = []
    for group in by_architecture:
        for trial in group:
            optimizer_options(name_in_label(trial.get("optimizer", "adamw")), trial.settings)
        try:
            shapes = _shapes(job, group)
        except Exception as error:  # the user's code may raise anything
            troubles.append(error)
            continue
        for trial, shapes_of_trial in zip((group[0], group[-1]), shapes, strict=True):
            job.tensors.check(trial, shapes_of_trial)
    if troubles and len(troubles) == len(by_architecture):
        raise troubles[0]


def _shapes(
    job: Job, group: list[Trial]
) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]:
    """Of the first and the last; every rule is tried on the way."""
    first = _built(job, group[0])
    last = _built(job, group[-1])
    by_rule = {trial.get("rule"): trial for trial in group}
    for trial in by_rule.values():
        job.plan_for(trial, first)
    return shapes_of(first), shapes_of(last)


def _built(job: Job, trial: Trial) -> nn.Module:
    with seeded(trial.seed):
        return job.built(trial.settings)
