"""Loop of a sweep: ask the sampler for trials, run those that are missing, store outcomes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orderone.core.errors import InputError, shortened, with_code
from orderone.observe.inventory import shapes_of
from orderone.optimizers.table import algorithm
from orderone.seeding import seeded
from orderone.sweeping.cores import Shapes, choose, divided, usable_cores, work_of_all
from orderone.sweeping.engine import Engine, groups, units
from orderone.sweeping.example_loss import compute_example_loss
from orderone.sweeping.executors import Executor, WorkersLost
from orderone.sweeping.executors.forked import Forked
from orderone.sweeping.executors.here import Here
from orderone.sweeping.job import Built, Job
from orderone.sweeping.member import optimizer_options
from orderone.sweeping.progress import Progress, progress_bar
from orderone.sweeping.pruning import Pruner
from orderone.sweeping.result import ClusterLost, Interrupted, Sweep
from orderone.sweeping.samplers import Results, Sampler
from orderone.sweeping.sequential import is_device_error
from orderone.sweeping.store import Store
from orderone.sweeping.trial import PER_TENSOR, Trial
from orderone.training import checkpoint as checkpoints
from orderone.training import interrupts
from orderone.training.outcome import Outcome

# errors that concern the sweep, not the settings of one trial
OF_ALL_TRIALS = (
    *("groups-differ", "optimizer-depends-on-size", "optimizer-given-twice"),
    *("complex-tensors", "needs-closure", "scripted-model", "sparse-gradients"),
)
MOST_FAILURES = 3  # failed trials that get a note each
FEW_SKIPPED = 8  # updates that float16 may leave out until the scale of the loss has settled
SHARE_SKIPPED = 0.02  # of all updates, later


@dataclass
class Driver:
    """Runs one sweep."""

    job: Job
    sampler: Sampler
    pruning: Pruner | None
    store: Store | None
    executor: Executor | None  # None: this process, or several if that is faster
    stacked: bool | str
    quiet: bool
    results: dict[str, tuple[Trial, Outcome]] = field(default_factory=dict)
    asked: dict[str, Trial] = field(default_factory=dict)
    ran: int = 0
    batch_accepted: bool = False  # whether a model of the sweep has accepted a batch
    division: str | None = None  # the number of processes, if the sweep chose it

    def run(self) -> Sweep:
        self.recall()
        with (
            interrupts.deferred(),
            progress_bar(self.sampler.total, self.job.steps, self.quiet) as progress,
        ):
            try:
                while trials := self.sampler.ask(self.results):
                    for trial in trials:
                        self.asked[trial.key] = trial
                    self.train(trials, progress)
            except KeyboardInterrupt:
                self.finish()
                raise Interrupted(self.result()) from None
            except WorkersLost as error:
                self.finish()
                raise ClusterLost(str(error), self.result()) from None
        self.finish()
        return self.result()

    def recall(self) -> None:
        """Load finished trials from the store.

        Failed trials run again. Trials that a pruner stopped run again if there is no pruner now.
        """
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
        if missing and not self.batch_accepted:
            check_batch(self.job, missing)
            self.batch_accepted = True
        shapes = check_members(self.job, missing)
        if self.pruning:
            for trial in missing:
                self.pruning.start(trial)
        executor, parts = self.divide(missing, shapes)
        job = self.job
        if executor.workers > 1:
            job = replace(job, processes=executor.workers)
        engine = Engine(job, self.folder, self.stacked)
        by_key = {trial.key: trial for trial in missing}
        for outcome in executor.run(
            engine, parts, lambda step, losses: self.report(step, losses, progress)
        ):
            self.add(by_key[outcome.key], outcome)
            progress.finish(by_key[outcome.key], outcome)

    def divide(
        self, trials: list[Trial], shapes: Mapping[str, Shapes]
    ) -> tuple[Executor, Sequence[Sequence[Trial]]]:
        """Return the executor, and units of work for it, the longest first."""
        job = self.job
        if self.executor is not None:
            return self.executor, units(trials, self.executor.workers, job.together, self.stacked)
        cores = usable_cores(job)
        parts = units(trials, cores, job.together, self.stacked)
        store = None if self.store is None else self.store.file
        division = choose(job, trials, parts, shapes, store)
        self.division = division.note or self.division
        if division.processes == 1:
            return Here(), units(trials, 1, job.together, self.stacked)
        work = work_of_all(job, trials, shapes, cores)
        longest_first, _ = divided(parts, work, division.processes)
        return Forked(division.processes), longest_first

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

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Store an outcome, then remove its checkpoint."""
        self.results[trial.key] = (trial, outcome)
        self.ran += 1
        if self.pruning:
            self.pruning.finish(trial, outcome)
        if self.store:
            self.store.add(trial, outcome)
            self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        if self.store and not self.store.unsaved:
            finished = {key for key, (_, outcome) in self.results.items() if outcome.finished}
            checkpoints.remove_finished(self.store.checkpoints, finished)

    def finish(self) -> None:
        """Write what is not stored yet, and remove checkpoints that are no longer needed."""
        if self.store and self.store.flush():
            self.remove_checkpoints()
            if self.store.checkpoints.is_dir() and not any(self.store.checkpoints.iterdir()):
                self.store.checkpoints.rmdir()

    def result(self) -> Sweep:
        outcomes = {key: self.results[key][1] for key in self.asked if key in self.results}
        store_path = None
        if self.store:
            store_path = str(self.store.path)
        return Sweep(self.asked, outcomes, store_path, self._notes(outcomes), self.ran, self.job)

    def _notes(self, outcomes: Mapping[str, Outcome]) -> list[str]:
        """Return notes on trials that failed, were not stacked, or could not be stored."""
        ended = [outcome for outcome in outcomes.values() if outcome.error is None]
        stacked = [outcome for outcome in ended if "not stacked" not in outcome.facts]
        notes = self._failure_notes(outcomes)
        notes += self._data_notes()
        notes += _skipped_notes(outcomes.values())
        notes += _unclear_notes(outcomes.values())
        notes += _shared_notes(outcomes.values())
        for reason in _different(ended, "not stacked"):  # ends with a code
            notes.append(f"not stacked, trained one after another: {reason}")
        for text in self._by_width(outcomes, "split", ": "):
            notes.append(with_code(text, "stack-split"))
        for reason in _different(stacked, "not compiled"):
            text = f"stacked without torch.compile, which failed: {reason}"
            notes.append(with_code(text, "compile-failed"))
        if self.division is not None:
            notes.append(self.division)
        compiled: dict[str, Outcome] = {}
        for key, outcome in outcomes.items():
            if outcome.error is None and "not compiled" not in outcome.facts:
                compiled[key] = outcome
        choices = self._by_width(compiled, "compile choice", " ")
        if choices:
            notes.append(f"compile={self.job.compile}: {'; '.join(choices)}")
        if self.store and self.store.unsaved:
            text = (
                f"{len(self.store.unsaved)} finished trials could not be written to"
                f" {self.store.path}: {self.store.trouble}"
            )
            notes.append(with_code(text, "results-not-saved"))
        return notes

    def _failure_notes(self, outcomes: Mapping[str, Outcome]) -> list[str]:
        """Return notes on the first trials that failed, and on the number of others."""
        failures: list[str] = []
        notes: list[str] = []
        for key, outcome in outcomes.items():
            if outcome.error is None:
                continue
            failures.append(f"failed: {self.asked[key]}: {shortened(outcome.error)}")
            if is_device_error(outcome.error) and not notes:
                text = (
                    "the device failed, and refuses all later work of this process; run the same"
                    " command again in a new process: it trains what is missing"
                )
                notes.append(with_code(text, "device-failed"))
        notes += [with_code(text, "trial-failed") for text in failures[:MOST_FAILURES]]
        if len(failures) > MOST_FAILURES:
            more = f"{len(failures) - MOST_FAILURES} more trials failed; see the column 'error'"
            notes.append(with_code(more, "trial-failed"))
        return notes

    def _by_width(self, outcomes: Mapping[str, Outcome], fact: str, between: str) -> list[str]:
        """Return the different texts of a fact, each with the width of its trials."""
        texts: dict[str, None] = {}
        for key, outcome in outcomes.items():
            if fact in outcome.facts:
                width = self.asked[key].get("width")
                texts[f"width {width}{between}{outcome.facts[fact]}"] = None
        return list(texts)

    def _data_notes(self) -> list[str]:
        """Return notes on the data of the longest trial of every batch size."""
        longest: dict[object, Trial] = {}
        for trial in sorted(self.asked.values(), key=lambda t: self.job.settings_of(t).steps):
            longest[trial.get("batch_size")] = trial
        notes: dict[str, None] = {}
        for trial in longest.values():
            needed = self.job.settings_of(trial).steps * self.job.accumulate
            notes.update(dict.fromkeys(self.job.source(trial).notes_on(needed)))
        return list(notes)


def _different(outcomes: Iterable[Outcome], fact: str) -> list[object]:
    """Return the different values of a fact about trials."""
    values: dict[object, None] = {}
    for outcome in outcomes:
        if fact in outcome.facts:
            values[outcome.facts[fact]] = None
    return list(values)


def _shared_notes(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a note on state that trials share and change."""
    for outcome in outcomes:
        shared = outcome.facts.get("shared state")
        if shared is not None:
            text = (
                f"{shared}; a trial starts with what the trials before it in this process have"
                " left, so that its losses may depend on their order; keep such state in the model"
            )
            return [with_code(text, "trials-share-state")]
    return []


def _unclear_notes(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a note if the last step of a stack could not be compared with a stand-alone one."""
    unclear = 0
    for outcome in outcomes:
        verified = outcome.facts.get("verified")
        unclear += isinstance(verified, Mapping) and verified.get("last") == "unclear"
    if not unclear:
        return []
    text = (
        f"for {unclear} trials in stacks, one member repeated the last step alone and got another"
        " result: the model has state outside its attributes, or a kernel is not repeatable; pass"
        " stacked=False to be sure, on a GPU also deterministic=True"
    )
    return [with_code(text, "last-step-unclear")]


def _skipped_notes(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a note if trials in float16 skipped many updates, because gradients overflowed."""
    most = 0
    trials = 0
    for outcome in outcomes:
        skipped = outcome.facts.get("skipped updates")
        usual = FEW_SKIPPED + SHARE_SKIPPED * len(outcome.losses)
        if outcome.status == "done" and isinstance(skipped, int) and skipped > usual:
            trials += 1
            most = max(most, skipped)
    if not trials:
        return []
    text = (
        f"{trials} trials skipped up to {most} updates, because gradients overflowed in float16;"
        " use precision='bfloat16', or smaller learning rates"
    )
    return [with_code(text, "updates-skipped")]


def check_batch(job: Job, trials: list[Trial]) -> None:
    """Raise an InputError if no model of these trials accepts the example batch.

    If some models accept it, the trials of the others fail when they are trained.
    """
    refusal: InputError | None = None
    for group in groups(trials):
        try:
            compute_example_loss(job, group[0])
        except InputError as error:
            refusal = refusal or error
        except Exception:  # the user's code may raise anything; training records the error
            return
        else:
            return
    if refusal is not None:
        raise refusal


def check_members(job: Job, trials: list[Trial]) -> dict[str, Shapes]:
    """Check before training that `build` makes the same tensors for every seed.

    Return the shapes of the tensors by program. Also check that every rule can be planned for them.
    This builds the first and the last trial of a group; the others are checked when they are
    trained. If some settings cannot be built (heads
    that do not divide a width), their trials fail later; if none can be built, raise the error.
    """
    by_architecture = groups(trials)
    errors: list[Exception] = []
    by_program: dict[str, Shapes] = {}
    for group in by_architecture:
        for trial in group:
            label = trial.get("optimizer", "adamw")
            record = algorithm(job.optimizers.get(label, label))
            optimizer_options(record.name, trial.settings, record.user_class)
        try:
            shapes = _shapes(job, group)
        except Exception as error:  # the user's code may raise anything
            if isinstance(error, InputError) and error.argument in PER_TENSOR:
                raise  # a key such as "lr.embedding" that does not fit the model
            if getattr(error, "code", None) in OF_ALL_TRIALS:
                raise
            errors.append(error)
            continue
        for trial, shapes_of_trial in zip((group[0], group[-1]), shapes, strict=True):
            job.tensors.check(trial, shapes_of_trial)
        by_program[group[0].program] = shapes[0]
    if errors and len(errors) == len(by_architecture):
        raise errors[0]
    return by_program


def _shapes(
    job: Job, group: list[Trial]
) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, tuple[int, ...]]]:
    """Return the tensor shapes of the first and the last trial, and plan every rule once."""
    first = _built(job, group[0])
    last = _built(job, group[-1])
    by_rule = {trial.get("rule"): trial for trial in group}
    for trial in by_rule.values():
        job.plan_for(trial, first)
    return shapes_of(first.model), shapes_of(last.model)


def _built(job: Job, trial: Trial) -> Built:
    with seeded(trial.seed):
        return job.built(trial.settings)
