"""Trials that will not be the best are stopped early, by the rule of a pruner of Optuna.

Every training is a trial of a study in memory, one study for every rule and size; trials of the store are in it too.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from orderone.core.errors import one_of
from orderone.core.optional import need
from orderone.sweeping.job import Job
from orderone.sweeping.outcome import Outcome, recent_loss
from orderone.sweeping.space import Space
from orderone.sweeping.trial import Trial, canonical

NAMES = ("median", "halving")


class Pruning:
    def __init__(self, pruner: Any, job: Job, space: Space):
        self._optuna = need("optuna", "optuna", "for a pruner")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._pruner, self._job, self._space = _read_pruner(self._optuna, pruner, job), job, space
        self._studies: dict[str, Any] = {}
        self._running: dict[str, Any] = {}  # trials of Optuna
        self._trials: dict[str, Trial] = {}

    def start(self, trial: Trial) -> None:
        self._trials[trial.key] = trial

    def remember(self, trial: Trial, outcome: Outcome) -> None:
        """One of the store: what it went through is what others are compared with."""
        every = self._job.report_every
        steps = range(every, len(outcome.losses), every)
        kept = self._optuna.trial.create_trial(
            value=outcome.final,
            intermediate_values={step: recent_loss(outcome.losses[:step], every) for step in steps},
        )
        if outcome.status == "done":
            self._study(trial).add_trial(kept)

    def report(self, step: int, losses: Mapping[str, float]) -> set[str]:
        """Those to stop. All are told before any is judged, so that members of a stack are compared with each other."""
        for key, loss in losses.items():
            if key not in self._running:
                self._running[key] = self._study(self._trials[key]).ask()
            self._running[key].report(loss, step)
        return {key for key in losses if self._running[key].should_prune()}

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        """An end of any kind."""
        running = self._running.pop(trial.key, None) or self._study(trial).ask()
        states = self._optuna.trial.TrialState
        if outcome.status == "stopped":
            self._study(trial).tell(running, state=states.PRUNED)
        elif isfinite(outcome.final):
            self._study(trial).tell(running, outcome.final)
        else:
            self._study(trial).tell(running, state=states.FAIL)

    def _study(self, trial: Trial) -> Any:
        arm = canonical({name: trial.get(name) for name in self._space.arms})
        if arm not in self._studies:
            self._studies[arm] = self._optuna.create_study(pruner=self._pruner)
        return self._studies[arm]


def _read_pruner(optuna: Any, given: Any, job: Job) -> Any:
    if isinstance(given, optuna.pruners.BasePruner):
        return given
    if not isinstance(given, str):
        raise ValueError(f"pruner: expected {' or '.join(NAMES)} or a pruner of Optuna, got {given!r}")
    if one_of(given, NAMES, "pruner") == "median":
        return optuna.pruners.MedianPruner(n_warmup_steps=job.steps // 5)
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=max(job.report_every, job.steps // 16))
