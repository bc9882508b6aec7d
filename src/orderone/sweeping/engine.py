"""Train a group of trials of one architecture: in one program, or one after another."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from orderone.core.errors import brief, with_code
from orderone.sweeping.example_loss import keep_example_loss
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import Report, describe, run_alone
from orderone.sweeping.trial import Trial
from orderone.training.deterministic import deterministic_kernels
from orderone.training.outcome import Outcome
from orderone.training.stacked.errors import NotStackable


@dataclass(frozen=True)
class Engine:
    """Trains units of trials; it is pickled for other processes.

    `stacked`: True requires stacking, False never stacks, "auto" stacks where possible.
    """

    job: Job
    checkpoint: Path | None = None
    stacked: bool | str = "auto"

    def run(self, trials: Sequence[Trial], report: Report | None = None) -> Iterator[Outcome]:
        """Yield one outcome per trial as soon as it is known."""
        # here, because this may run in another process than `sweep`
        with deterministic_kernels(self.job.deterministic, torch.device(self.job.device)):
            yield from self._run(trials, report)

    def _run(self, trials: Sequence[Trial], report: Report | None) -> Iterator[Outcome]:
        if self.stacked is False or (self.stacked == "auto" and len(trials) == 1):
            yield from run_alone(self.job, trials, report, self.checkpoint)
            return
        from orderone.sweeping.stacked import run_stacked

        keep_example_loss(self.job, trials[0])
        done: set[str] = set()
        try:
            for outcome in run_stacked(
                self.job, trials, report, self.checkpoint, if_faster=self.stacked == "auto"
            ):
                done.add(outcome.key)
                yield outcome
            return
        except NotStackable as error:
            remaining = [trial for trial in trials if trial.key not in done]
            by_data = _by_data_seed(remaining)
            if error.code == "batch-shapes-differ" and len(by_data) > 1:
                for group in by_data:  # members with the same seed read the same batches
                    yield from self.run(group, report)
                return
            if self.stacked is True:
                raise
            reason = str(error)
        except Exception as error:
            # the error may come from one trial, or from the stack (out of memory): train the rest
            # one by one to find out
            if self.stacked is True:
                for trial in trials:
                    if trial.key not in done:
                        yield Outcome(trial.key, error=describe(error))
                return
            reason = with_code(brief(error), "stack-failed")
        remaining = [trial for trial in trials if trial.key not in done]
        for outcome in run_alone(self.job, remaining, report, self.checkpoint):
            yield replace(outcome, facts={**outcome.facts, "not stacked": reason})


def _by_data_seed(trials: Sequence[Trial]) -> list[list[Trial]]:
    by_seed: dict[int, list[Trial]] = {}
    for trial in trials:
        by_seed.setdefault(trial.data_seed, []).append(trial)
    return list(by_seed.values())


def groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the trials grouped by architecture and batch size, in the order of appearance."""
    by_program: dict[str, list[Trial]] = {}
    for trial in trials:
        by_program.setdefault(trial.program, []).append(trial)
    return list(by_program.values())


def units(
    trials: Sequence[Trial], workers: int, together: int | None, stacked: bool | str
) -> list[list[Trial]]:
    """Return units of work: parts of groups, so many that all workers have work."""
    parts: list[list[Trial]] = []
    for group in groups(trials):
        if stacked is False:
            share = 1
        else:
            share = math.ceil(len(group) / workers)
        size = max(1, min(share, together or share))
        for first in range(0, len(group), size):
            parts.append(group[first : first + size])
    return parts
