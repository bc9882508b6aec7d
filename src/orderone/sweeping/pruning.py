"""Stop poor trials early; each is compared with trials of the same rule and size.

"halving": after 1/8, 1/4 and 1/2 of the steps, the better half of all trials that got so far
continues. Members of a stack are compared with each other at the same time, later trials with
earlier ones. "median" and pruners of Optuna decide by their own rules: most of them compare with
trials that have ended.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Protocol, runtime_checkable

from orderone.core.canonical import canonical
from orderone.core.errors import InputError, one_of
from orderone.core.optional import need
from orderone.sweeping.inputs import PrunerInput
from orderone.sweeping.job import Job
from orderone.sweeping.space import Space
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome, recent_loss

NAMES = ("median", "halving")
RUNGS = (8, 4, 2)  # compare after 1/8, 1/4 and 1/2 of the steps


@runtime_checkable
class Pruner(Protocol):
    """Decides which running trials to stop."""

    def start(self, trial: Trial) -> None: ...

    def remember(self, trial: Trial, outcome: Outcome) -> None:
        """Add a trial of the store, for comparison with others."""
        ...

    def report(self, step: int, losses: Mapping[str, float]) -> set[str]:
        """Return the keys of the trials to stop."""
        ...

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        """Record that a trial has ended: done, diverged, stopped or failed."""
        ...


def read_pruner(pruner: PrunerInput, job: Job, space: Space) -> Pruner:
    """Return the pruner of this name, or a wrapper of a pruner of Optuna."""
    if isinstance(pruner, str) and one_of(pruner, NAMES, "pruner") == "halving":
        return Halving(job, space)
    optuna = need("optuna", "optuna", "for this pruner")
    if isinstance(pruner, str):
        pruner = optuna.pruners.MedianPruner(n_warmup_steps=_fewest_steps(job, space) // 5)
    if not isinstance(pruner, optuna.pruners.BasePruner):
        raise InputError(
            f"pruner: expected {', '.join(NAMES)} or a pruner of Optuna, got {pruner!r}",
            "wrong-type",
            argument="pruner",
        )
    return ByOptuna(optuna, pruner, job, space)


def _fewest_steps(job: Job, space: Space) -> int:
    return min(space.amounts.get("steps", (job.steps,)))


def arm_of(trial: Trial, space: Space) -> str:
    """Return a text that is the same for all trials of one rule, optimizer and size."""
    return canonical({name: trial.get(name) for name in space.arms})


class Halving:
    """Lets the better half of the trials of an arm continue at each rung."""

    def __init__(self, job: Job, space: Space):
        self._job = job
        self._every = job.report_every
        self._space = space
        self._rungs: dict[str, set[int]] = {}  # by key
        self._arms: dict[str, str] = {}
        self._losses: dict[tuple[str, int], dict[str, float]] = {}

    def start(self, trial: Trial) -> None:
        self._arms[trial.key] = arm_of(trial, self._space)
        steps = self._job.settings_of(trial).steps
        every = self._every
        self._rungs[trial.key] = {max(1, steps // part // every) * every for part in RUNGS}

    def remember(self, trial: Trial, outcome: Outcome) -> None:
        self.start(trial)
        for step in self._rungs[trial.key]:
            if step < len(outcome.losses) or outcome.stopped_at == step:
                self._add(step, trial.key, recent_loss(outcome.losses[:step], self._every))

    def report(self, step: int, losses: Mapping[str, float]) -> set[str]:
        compared = [key for key in losses if step in self._rungs[key]]
        for key in compared:
            self._add(step, key, losses[key])
        return {key for key in compared if not self._continues(step, key)}

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        """Do nothing: the losses that count were reported before."""

    def _add(self, step: int, key: str, loss: float) -> None:
        self._losses.setdefault((self._arms[key], step), {})[key] = loss

    def _continues(self, step: int, key: str) -> bool:
        rivals = self._losses[self._arms[key], step]
        better = sum(loss < rivals[key] for loss in rivals.values())
        return better < (len(rivals) + 1) // 2


class ByOptuna:
    """Asks a pruner of Optuna: one study in memory per arm, with one Optuna trial per training.

    The studies contain the trials of the store too.
    """

    def __init__(self, optuna: Any, pruner: Any, job: Job, space: Space):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._pruner = pruner
        self._job = job
        self._space = space
        self._studies: dict[str, Any] = {}
        self._running: dict[str, Any] = {}  # trials of Optuna
        self._trials: dict[str, Trial] = {}

    def start(self, trial: Trial) -> None:
        self._trials[trial.key] = trial

    def remember(self, trial: Trial, outcome: Outcome) -> None:
        if outcome.status != "done":
            return
        every = self._job.report_every
        values: dict[int, float] = {}
        for step in range(every, len(outcome.losses), every):
            values[step] = recent_loss(outcome.losses[:step], every)
        self._study(trial).add_trial(
            self._optuna.trial.create_trial(value=outcome.final, intermediate_values=values)
        )

    def report(self, step: int, losses: Mapping[str, float]) -> set[str]:
        """Report all losses first, so that members of a stack are compared with each other."""
        for key, loss in losses.items():
            if key not in self._running:
                self._running[key] = self._study(self._trials[key]).ask()
            self._running[key].report(loss, step)
        return {key for key in losses if self._running[key].should_prune()}

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        running = self._running.pop(trial.key, None) or self._study(trial).ask()
        states = self._optuna.trial.TrialState
        if outcome.status == "stopped":
            self._study(trial).tell(running, state=states.PRUNED)
        elif isfinite(outcome.final):
            self._study(trial).tell(running, outcome.final)
        else:
            self._study(trial).tell(running, state=states.FAIL)

    def _study(self, trial: Trial) -> Any:
        arm = arm_of(trial, self._space)
        if arm not in self._studies:
            self._studies[arm] = self._optuna.create_study(pruner=self._pruner)
        return self._studies[arm]
