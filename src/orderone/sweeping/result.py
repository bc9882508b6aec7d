"""A sweep: its trials and what came of them, as tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING, Any

from orderone.sweeping.job import Job
from orderone.sweeping.kept_jobs import chosen, read_jobs
from orderone.sweeping.store import read_store
from orderone.sweeping.trial import KNOWN, Trial
from orderone.training.outcome import Outcome

if TYPE_CHECKING:
    import pandas

    from orderone.sweeping.transfer import Transfer

ARM = ("rule", "optimizer", "width", "depth")
REPEATS = ("seed", "data_seed")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, after everything was saved. `sweep` holds what is done; the same call goes
    on from there."""

    def __init__(self, sweep: "Sweep"):
        if sweep.store:
            remedy = "the same call goes on from here"
        else:
            remedy = "give store= to go on from such a place"
        super().__init__(f"interrupted: {sweep.summary}; {remedy}")
        self.sweep = sweep


@dataclass
class Sweep:
    """Trials by their key. Those without an outcome were not run (interrupted)."""

    trials: Mapping[str, Trial]
    outcomes: Mapping[str, Outcome]
    store: str | None = None
    notes: list[str] = field(default_factory=list)
    ran: int = 0  # by this call; the others were in the store
    job: Job | None = field(default=None, repr=False)  # None if it was loaded

    @staticmethod
    def load(store: Any, job: Any = None) -> "Sweep":
        """What a store has of one sweep: the newest, or the one whose fingerprint begins with
        `job`.

        Sweeps that differ in more than their space (steps, data, code) are kept apart, and named in
        the notes.
        """
        jobs = read_jobs(store)
        if not jobs and job is None:
            return Sweep({}, {}, str(store))
        one = chosen(jobs, job, store)
        found = read_store(store, one.fingerprint)
        notes = [
            f"another sweep is here too: {other.unlike(one)}; Sweep.load(store, job={other.name!r})"
            " reads it"
            for other in jobs
            if other != one
        ]
        outcomes = {key: outcome for key, (_, outcome) in found.items()}
        return Sweep({key: trial for key, (trial, _) in found.items()}, outcomes, str(store), notes)

    @property
    def frame(self) -> "pandas.DataFrame":
        """One row a trial: its settings, `loss` (what trials are compared by), and how it ended."""
        import pandas

        rows = [
            _row(trial, self.outcomes[key])
            for key, trial in self.trials.items()
            if key in self.outcomes
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        settings = [name for name in (*KNOWN, *names) if name in names and name not in _FACTS]
        return pandas.DataFrame(
            rows, columns=pandas.Index(list(dict.fromkeys([*settings, *_FACTS])))
        )

    @property
    def curves(self) -> "pandas.DataFrame":
        """Training losses: key, step, loss."""
        import numpy as np
        import pandas

        found = [(key, self.outcomes[key].losses) for key in self.trials if key in self.outcomes]
        if not found:
            return pandas.DataFrame({"key": [], "step": [], "loss": []})
        keys = np.repeat([key for key, _ in found], [len(losses) for _, losses in found])
        steps = np.concatenate([np.arange(len(losses)) for _, losses in found])
        return pandas.DataFrame(
            {"key": keys, "step": steps, "loss": np.concatenate([losses for _, losses in found])}
        )

    def best(self) -> "pandas.DataFrame":
        """For every rule and size, the settings with the lowest loss, on average over seeds."""
        frame = self.frame
        frame = frame[frame["status"].isin(["done", "diverged"])]
        arm = [name for name in ARM if name in frame]
        tuned = [name for name in frame if name not in (*arm, *REPEATS, *_FACTS)]
        means = (
            frame.groupby([*arm, *tuned], dropna=False, sort=False)["loss"]
            .agg(["mean", "size"])
            .reset_index()
        )
        means = means.rename(columns={"mean": "loss", "size": "seeds"})
        means["seeds"] = means["seeds"].astype(int)
        order = means.sort_values("loss", kind="stable").drop_duplicates(arm)
        return order.sort_values(arm, kind="stable").reset_index(drop=True)

    def transfer(self, **options: Any) -> "Transfer":
        """Does the best learning rate stay where it is as the model grows?"""
        from orderone.sweeping.transfer import Transfer

        return Transfer.from_frame(self.frame, **(self._of_the_job() | options))

    def _of_the_job(self) -> dict[str, Any]:
        """The base and the plan that learning rates belong to."""
        if self.job is None:
            return {}
        sizes = {
            name: {trial.get(name) for trial in self.trials.values()} for name in ("width", "depth")
        }
        growing = next((name for name, found in sizes.items() if len(found) > 1), "width")
        made = {"options": dict(self.job.plan_options), "build": self.job.build}
        return made | (
            {"base": self.job.base_sizes[growing]} if growing in self.job.base_sizes else {}
        )

    @property
    def summary(self) -> str:
        counts: dict[str, int] = {}
        for key in self.trials:
            status = self.outcomes[key].status if key in self.outcomes else "not run"
            counts[status] = counts.get(status, 0) + 1
        return f"{len(self.trials)} trials: " + ", ".join(
            f"{number} {status}" for status, number in counts.items()
        )

    def __str__(self) -> str:
        lines = [self.summary + (f" ({self.store})" if self.store else "")]
        if self.outcomes:
            lines += [
                "best for every rule and size, mean over seeds:",
                self.best().to_string(index=False),
            ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


_FACTS = ("loss", "evaluation", "diverged", "steps", "seconds", "status", "error", "key")


def _row(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    return {
        **trial.settings,
        "loss": inf if outcome.status == "diverged" else outcome.final,
        "evaluation": outcome.evaluation[-1][1] if outcome.evaluation else nan,
        "diverged": outcome.status == "diverged",
        "steps": len(outcome.losses),
        "seconds": outcome.seconds,
        "status": outcome.status,
        "error": outcome.error,
        "key": trial.key,
    }
