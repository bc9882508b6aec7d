"""Choice of the points to train: a grid, random points, or a sampler of Optuna."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import isnan, nan
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from orderone.core.canonical import canonical
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.core.optional import need
from orderone.sweeping.inputs import SamplerInput
from orderone.sweeping.job import Job
from orderone.sweeping.space import LogGrid, Point, Space
from orderone.sweeping.trial import Scalar, Trial
from orderone.training.outcome import Outcome

NAMES = ("grid", "random", "tpe", "cmaes")
BATCH = 8  # points that Optuna proposes at a time
Results = Mapping[str, tuple[Trial, Outcome]]


@runtime_checkable
class Sampler(Protocol):
    """Proposes trials."""

    total: int  # number of trials in the whole sweep

    def ask(self, results: Results) -> list[Trial]:
        """Return the next trials, some of which may be in `results`; an empty list at the end."""
        ...


class Listed:
    """Proposes all points at once, the same for every arm."""

    def __init__(self, job: Job, space: Space, points: Sequence[Point]):
        by_key: dict[str, Trial] = {}
        for arm, point, repeat in product(space.all_arms(), points, space.all_repeats()):
            trial = job.trial({**arm, **point, **repeat})
            by_key[trial.key] = trial
        self._trials = list(by_key.values())
        self.total: int = len(self._trials)

    def ask(self, results: Results) -> list[Trial]:
        asked = self._trials
        self._trials = []
        return asked


def read_sampler(
    sampler: SamplerInput,
    job: Job,
    space: Space,
    trials: Count | None,
    batch: int | None,
    seed: int,
) -> Sampler:
    """Return the sampler of this name, or a wrapper of a sampler of Optuna."""
    name = "optuna"
    if isinstance(sampler, str):
        name = one_of(sampler, NAMES, "sampler")
    if name == "grid":
        if trials is not None:
            raise InputError(
                "trials: the space defines the number of trials of a grid; leave trials out, or"
                f' pass sampler="random"; got {trials!r}',
                argument="trials",
            )
        return Listed(job, space, list(space.grid()))
    if name == "random":
        number = _number_of_trials(trials, name)
        return Listed(job, space, list(space.draw(number, seed)))
    optuna = _optuna_for(sampler)
    number = _number_of_trials(trials, name)
    if not space.tuned:
        raise InputError(
            "space: expected a setting to tune, such as lr; got only seeds", argument="space"
        )

    def sampler_of_arm(done: int) -> Any:
        return _sampler(optuna, sampler, done, seed)

    return Adaptive(optuna, job, space, sampler_of_arm, number, batch or BATCH)


def _number_of_trials(trials: Count | None, name: str) -> int:
    if trials is None:
        raise InputError(
            f"trials: the sampler {name} needs the number of points to try for every rule and size;"
            " pass trials=...",
            argument="trials",
        )
    return count(trials, "trials")


def _optuna_for(sampler: SamplerInput) -> ModuleType:
    optuna = need("optuna", "optuna", "for this sampler")
    if not isinstance(sampler, (str, optuna.samplers.BaseSampler)):
        raise InputError(
            f"sampler: expected {', '.join(NAMES)} or a sampler of Optuna, got {sampler!r}",
            "wrong-type",
            argument="sampler",
        )
    if sampler == "cmaes":
        need("cmaes", "optuna", "for this sampler")
    return optuna


def _sampler(optuna: ModuleType, sampler: SamplerInput, done: int, seed: int) -> Any:
    """Return a new sampler of Optuna for one arm.

    Its seed depends on the number of points `done`; otherwise it would propose them again.
    """
    if not isinstance(sampler, str):
        fresh = copy.deepcopy(sampler)
        if done:
            fresh.reseed_rng()
        return fresh
    seed += done
    if sampler.lower() == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed)
    with warnings.catch_warnings():
        # Optuna marks constant_liar as experimental; without it, points of a batch would be close.
        warnings.simplefilter("ignore")
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


# --- Optuna ---------------------------------------------------------------------------------------


class Adaptive:
    """Asks a sampler of Optuna for a batch of points at a time, and reports the mean over seeds.

    There is one study per arm, in memory; it is rebuilt from the store. Points in the store count
    as tried, and points for which some seeds are missing come first.
    """

    def __init__(
        self,
        optuna: ModuleType,
        job: Job,
        space: Space,
        sampler: Callable[[int], Any],
        number: int,
        batch: int,
    ):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._job = job
        self._space = space
        self._number = number
        self._batch = batch
        self._distributions: dict[str, Any] = {}
        for name, values in space.tuned.items():
            self._distributions[name] = _distribution(optuna, values)
        self._arms = space.all_arms()
        self._repeats = space.all_repeats()
        self._sampler = sampler
        self._studies: list[Any] = []
        self._asked: list[list[tuple[Any, Point]]] = [[] for _ in self._arms]
        self._left: list[int] | None = None
        self.total: int = number * len(self._arms) * len(self._repeats)

    def ask(self, results: Results) -> list[Trial]:
        trials: list[Trial] = []
        if self._left is None:  # points of earlier runs belong to this sweep
            self._left = []
            for arm in self._arms:
                points = self._recall(arm, results)
                self._left.append(max(0, self._number - len(points)))
                for point in points:
                    trials += self._trials(arm, point)
        self._tell(results)
        for i, arm in enumerate(self._arms):
            for _ in range(min(self._batch, self._left[i])):
                trial = self._studies[i].ask(self._distributions)
                point = {name: trial.params[name] for name in self._space.tuned}
                self._asked[i].append((trial, point))
                trials += self._trials(arm, point)
            self._left[i] -= len(self._asked[i])
        return trials

    def _trials(self, arm: Point, point: Point) -> list[Trial]:
        return [self._job.trial({**arm, **point, **repeat}) for repeat in self._repeats]

    def _tell(self, results: Results) -> None:
        for study, arm, asked in zip(self._studies, self._arms, self._asked, strict=True):
            for trial, point in asked:
                value = self._value(arm, point, results)
                state = self._optuna.trial.TrialState
                if isnan(value):
                    study.tell(trial, state=state.FAIL)
                else:
                    study.tell(trial, value)
            asked.clear()

    def _value(self, arm: Point, point: Point, results: Results) -> float:
        """Return the mean loss over seeds; NaN if one of them has no result."""
        losses: list[float] = []
        for trial in self._trials(arm, point):
            if trial.key not in results:
                return nan
            _, outcome = results[trial.key]
            if not outcome.finished:
                return nan
            losses.append(outcome.final)
        return float(np.mean(losses))

    def _recall(self, arm: Point, results: Results) -> list[Point]:
        """Make the study of an arm with the points of earlier runs; return the complete ones."""
        points: dict[str, Point] = {}
        for trial, _ in results.values():
            point = self._point(trial, arm)
            if point:
                points[canonical(point)] = point
        study = self._optuna.create_study(sampler=self._sampler(len(points)))
        complete: list[Point] = []
        for point in points.values():
            value = self._value(arm, point, results)
            if isnan(value):
                study.enqueue_trial(point)
                continue
            complete.append(point)
            study.add_trial(
                self._optuna.trial.create_trial(
                    params=point, distributions=self._distributions, value=value
                )
            )
        self._studies.append(study)
        return complete

    def _point(self, trial: Trial, arm: Point) -> Point | None:
        """Return the tuned settings of a trial; None if it is not of this job, arm and space."""
        if trial.job != self._job.fingerprint:
            return None
        settings = dict(trial.settings)
        point: Point = {}
        for name in self._space.tuned:
            if name not in settings:
                return None
            point[name] = settings.pop(name)
        if not any(settings == {**arm, **repeat} for repeat in self._repeats):
            return None
        for name, value in point.items():
            if not _within(self._distributions[name], value):
                return None
        return point


def _distribution(optuna: ModuleType, values: Sequence[Scalar]) -> Any:
    kinds = optuna.distributions
    if isinstance(values, LogGrid) and len(values) > 1:
        return kinds.FloatDistribution(values[0], values[-1], log=True)
    if isinstance(values, range) and values.step > 0:
        return kinds.IntDistribution(values[0], values[-1], step=values.step)
    return kinds.CategoricalDistribution(tuple(values))


def _within(distribution: Any, value: Scalar) -> bool:
    try:
        return bool(distribution._contains(distribution.to_internal_repr(value)))
    except ValueError:
        return False
