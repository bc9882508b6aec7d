"""Which points are trained: all of a grid, random ones, or those that a sampler of Optuna asks for,
some at a time."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import isnan, nan
from typing import Any, Protocol, runtime_checkable

import numpy as np

from orderone.core.canonical import canonical
from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.optional import need
from orderone.sweeping.job import Job
from orderone.sweeping.space import LogGrid, Point, Space
from orderone.sweeping.trial import Scalar, Trial
from orderone.training.outcome import Outcome

NAMES = ("grid", "random", "tpe", "cmaes")
BATCH = 8  # points that are asked for at a time
Results = Mapping[str, tuple[Trial, Outcome]]


@runtime_checkable
class Sampler(Protocol):
    total: int  # trials, all in all

    def ask(self, results: Results) -> list[Trial]:
        """The next trials, which may have been run already; none when it is done."""
        ...


class Listed:
    """All points at once, the same for every arm."""

    def __init__(self, job: Job, space: Space, points: Sequence[Point]):
        combined = product(space.all_arms(), points, space.all_repeats())
        found = [job.trial({**arm, **point, **repeat}) for arm, point, repeat in combined]
        self._trials = list({trial.key: trial for trial in found}.values())
        self.total: int = len(self._trials)

    def ask(self, results: Results) -> list[Trial]:
        asked = self._trials
        self._trials = []
        return asked


def read_sampler(
    given: Any, job: Job, space: Space, trials: Any, batch: int | None, seed: int
) -> Sampler:
    """By name, or a sampler of Optuna."""
    name = one_of(given, NAMES, "sampler") if isinstance(given, str) else "optuna"
    if name == "grid":
        if trials is not None:
            raise ValueError(
                'trials: a grid has its own number; leave it out, or say sampler="random"; got'
                f" {trials!r}"
            )
        return Listed(job, space, list(space.grid()))
    optuna = None if name == "random" else _optuna_for(given)
    number = count(_wanted(trials, name), "trials")
    if optuna is None:
        return Listed(job, space, list(space.draw(number, seed)))
    if not space.tuned:
        raise ValueError("space: expected something to tune, such as lr; got seeds alone")
    return Adaptive(
        optuna, job, space, lambda done: _sampler(optuna, given, done, seed), number, batch or BATCH
    )


def _wanted(trials: Any, name: str) -> Any:
    if trials is None:
        raise ValueError(
            "trials: expected how many points to try for every rule and size, since sampler is"
            f" {name}"
        )
    return trials


def _optuna_for(given: Any) -> Any:
    optuna = need("optuna", "optuna", "for this sampler")
    if not isinstance(given, (str, optuna.samplers.BaseSampler)):
        raise ValueError(
            f"sampler: expected {', '.join(NAMES)} or a sampler of Optuna, got {given!r}"
        )
    if given == "cmaes":
        need("cmaes", "optuna", "for this sampler")
    return optuna


def _sampler(optuna: Any, given: Any, done: int, seed: int) -> Any:
    """A fresh one for each arm. Where points are `done` it starts elsewhere: else it would ask for
    them again."""
    if not isinstance(given, str):
        own = copy.deepcopy(given)
        if done:
            own.reseed_rng()
        return own
    seed += done
    if given.lower() == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the liar is called experimental: it keeps points of a batch apart
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


# --- Optuna ---------------------------------------------------------------------------------------


class Adaptive:
    """A study for every arm, asked for some points at a time and told the mean over seeds.

    The studies live in memory and are made again from the store: points that are there count as
    tried, and points of which some seeds are missing come first.
    """

    def __init__(
        self,
        optuna: Any,
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
        self._distributions = {
            name: _distribution(optuna, values) for name, values in space.tuned.items()
        }
        self._arms = space.all_arms()
        self._repeats = space.all_repeats()
        self._sampler = sampler
        self._studies = []
        self._asked: list[list[tuple[Any, Point]]] = [[] for _ in self._arms]
        self._left: list[int] | None = None
        self.total: int = number * len(self._arms) * len(self._repeats)

    def ask(self, results: Results) -> list[Trial]:
        found: list[Trial] = []
        if self._left is None:  # what was asked for in earlier runs belongs to this one
            recalled = [self._recall(arm, results) for arm in self._arms]
            self._left = [max(0, self._number - len(points)) for points in recalled]
            for arm, points in zip(self._arms, recalled, strict=True):
                found += [trial for point in points for trial in self._trials(arm, point)]
        self._tell(results)
        for i, arm in enumerate(self._arms):
            for _ in range(min(self._batch, self._left[i])):
                trial = self._studies[i].ask(self._distributions)
                point = {name: trial.params[name] for name in self._space.tuned}
                self._asked[i].append((trial, point))
                found += self._trials(arm, point)
            self._left[i] -= len(self._asked[i])
        return found

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
        """The mean over seeds; NaN if one of them has no result."""
        found = [
            results[trial.key][1] for trial in self._trials(arm, point) if trial.key in results
        ]
        if len(found) < len(self._repeats) or not all(outcome.finished for outcome in found):
            return nan
        return float(np.mean([outcome.final for outcome in found]))

    def _recall(self, arm: Point, results: Results) -> list[Point]:
        """A study with the points of earlier runs: those that are complete."""
        points = {
            canonical(point): point
            for trial, _ in results.values()
            if (point := self._point(trial, arm))
        }
        values = {name: self._value(arm, point, results) for name, point in points.items()}
        study = self._optuna.create_study(sampler=self._sampler(len(points)))
        for name, point in points.items():
            if isnan(values[name]):
                study.enqueue_trial(point)
                continue
            study.add_trial(
                self._optuna.trial.create_trial(
                    params=point, distributions=self._distributions, value=values[name]
                )
            )
        self._studies.append(study)
        return [point for name, point in points.items() if not isnan(values[name])]

    def _point(self, trial: Trial, arm: Point) -> Point | None:
        """What is tuned in a trial, if it belongs to this job and arm and its values could have
        been asked for."""
        settings = dict(trial.settings)
        point = {name: settings.pop(name) for name in self._space.tuned if name in settings}
        fits = trial.job == self._job.fingerprint and len(point) == len(self._space.tuned)
        if not fits or not any(settings == {**arm, **repeat} for repeat in self._repeats):
            return None
        inside = all(_within(self._distributions[name], value) for name, value in point.items())
        return point if inside else None


def _distribution(optuna: Any, values: Sequence[Scalar]) -> Any:
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
