"""Result of a sweep: trials and their outcomes, as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan
from typing import TYPE_CHECKING, Any

from orderone.core.canonical import canonical
from orderone.core.errors import hint_on_codes, with_code
from orderone.core.inputs import Name
from orderone.core.notebook import notebook_html
from orderone.core.text_table import printable, text_table, text_width, wrapped
from orderone.sweeping.job import Job
from orderone.sweeping.store import StorePath, read_store
from orderone.sweeping.stored_jobs import choose_job, read_jobs
from orderone.sweeping.trial import RESULTS, Trial, in_order
from orderone.sweeping.verified import Verified
from orderone.training.outcome import Outcome

if TYPE_CHECKING:
    import pandas

    from orderone.sweeping.combinations import Transfers
    from orderone.sweeping.transfer import Transfer

ARM = ("rule", "optimizer", "width", "depth", "batch_size", "steps")
REPEATS = ("seed", "data_seed")


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C or SIGTERM, after everything was saved; `sweep` has the finished trials.

    With a store, the same call continues from there.
    """

    def __init__(self, sweep: "Sweep"):
        finished = sum(outcome.finished for outcome in sweep.outcomes.values())
        text = f"interrupted: {finished} of {len(sweep.trials)} trials finished"
        if sweep.store:
            text += f"; partial progress was saved in {sweep.store}"
            text += "; run the same call again to continue"
        else:
            text += "; nothing was saved to disk; pass store= to be able to continue"
        super().__init__(text)
        self.sweep = sweep


class ClusterLost(RuntimeError):  # noqa: N818
    """Raised if the Ray cluster does not answer any more; `sweep` has the finished trials.

    The connection to the cluster is closed. With a store, the same call continues on a new cluster.
    """

    def __init__(self, reason: str, sweep: "Sweep"):
        finished = sum(outcome.finished for outcome in sweep.outcomes.values())
        text = f"{reason}; {finished} of {len(sweep.trials)} trials finished"
        if sweep.store:
            text += f" and are in {sweep.store}; run the same call on a new cluster to continue"
        else:
            text += "; nothing was saved to disk; pass store= to be able to continue"
        super().__init__(text)
        self.sweep = sweep


@dataclass(frozen=True)
class Sweep:
    """Trials and their outcomes by key; trials without an outcome were not run (interrupted)."""

    trials: Mapping[str, Trial]
    outcomes: Mapping[str, Outcome]
    store: str | None = None
    notes: Sequence[str] = ()
    ran: int = 0  # trials run by this call; the others were in the store
    job: Job | None = field(default=None, repr=False)  # None if the sweep was loaded

    @staticmethod
    def load(store: StorePath, job: Name | None = None) -> "Sweep":
        """Read one sweep of a store: the newest, or the one whose fingerprint begins with `job`.

        Sweeps that differ in more than their space (steps, data, code) are not mixed; the notes
        name the others.
        """
        jobs = read_jobs(store)
        if not jobs and job is None:
            return Sweep({}, {}, str(store))
        chosen = choose_job(jobs, job, store)
        trials: dict[str, Trial] = {}
        outcomes: dict[str, Outcome] = {}
        for key, (trial, outcome) in read_store(store, chosen.fingerprint).items():
            trials[key] = trial
            outcomes[key] = outcome
        notes: list[str] = []
        for other in jobs:
            if other != chosen:
                text = (
                    f"the store has another sweep: {other.difference(chosen)}; to read it, call"
                    f" Sweep.load(store, job={other.name!r})"
                )
                notes.append(with_code(text, "several-sweeps-in-store"))
        return Sweep(trials, outcomes, str(store), notes)

    @property
    def frame(self) -> "pandas.DataFrame":
        """One row per trial: settings, `loss` (by which trials are compared), and how it ended.

        `steps` is the number of updates made. In a sweep over steps it is the setting, and
        `updates` is the number of updates made.
        """
        import pandas

        rows: list[dict[str, object]] = []
        for key, trial in self.trials.items():
            if key in self.outcomes:
                rows.append(_row(trial, self.outcomes[key]))
        names: dict[str, None] = {}  # columns of all rows, in the order in which they first appear
        for row in rows:
            names.update(dict.fromkeys(row))
        settings = in_order(name for name in names if name not in RESULTS)
        if "updates" in names:
            place = len(settings)
            if "lr" in settings:
                place = settings.index("lr")
            settings.insert(place, "steps")
        facts = [name for name in RESULTS if name in names or name != "updates"]
        columns = list(dict.fromkeys([*settings, *facts]))
        return pandas.DataFrame(rows, columns=pandas.Index(columns))

    @property
    def verified(self) -> "tuple[Verified, ...]":
        """Result of comparing each stack with stand-alone runs, in the order of the trials."""
        stacks: dict[tuple[object, ...], list[str]] = {}
        for key in self.trials:
            if key in self.outcomes:
                facts = self.outcomes[key].facts
            else:
                facts = {}
            if facts.get("engine") == "stacked":
                stack = (self.trials[key].program, canonical(facts.get("verified")))
                stacks.setdefault(stack, []).append(key)
        return tuple(Verified.read(keys, self.outcomes[keys[0]]) for keys in stacks.values())

    @property
    def curves(self) -> "pandas.DataFrame":
        """Training losses: key, step, loss."""
        import numpy as np
        import pandas

        keys: list[str] = []
        losses: list[np.ndarray] = []
        steps: list[np.ndarray] = []
        for key in self.trials:
            if key in self.outcomes:
                keys.append(key)
                losses.append(self.outcomes[key].losses)
                steps.append(np.arange(len(self.outcomes[key].losses)))
        if not keys:
            return pandas.DataFrame({"key": [], "step": [], "loss": []})
        lengths = [len(curve) for curve in losses]
        return pandas.DataFrame(
            {
                "key": np.repeat(keys, lengths),
                "step": np.concatenate(steps),
                "loss": np.concatenate(losses),
            }
        )

    def best(self) -> "pandas.DataFrame":
        """Return the settings with the lowest mean loss over seeds, for every rule and size."""
        frame = self.frame
        frame = frame[frame["status"].isin(["done", "diverged"])]
        results = {*RESULTS}
        if "updates" in frame:  # then `steps` is a setting
            results.remove("steps")
        arm = [name for name in ARM if name in frame and name not in results]
        tuned = [name for name in frame if name not in (*arm, *REPEATS, *results)]
        means = (
            frame.groupby([*arm, *tuned], dropna=False, sort=False)["loss"]
            .agg(["mean", "size"])
            .reset_index()
        )
        means = means.rename(columns={"mean": "loss", "size": "seeds"})
        means["seeds"] = means["seeds"].astype(int)
        order = means.sort_values("loss", kind="stable").drop_duplicates(arm)
        return order.sort_values(arm, kind="stable").reset_index(drop=True)

    def transfer(self, **options: object) -> "Transfer":
        """Test whether the best learning rate stays the same as the model grows.

        `options` are those of `Transfer.from_frame`.
        """
        from orderone.sweeping.transfer import Transfer

        return Transfer.from_frame(self._frame_with_tokens(), **self._study_options(options))

    def transfers(self, **options: object) -> "Transfers":
        """Make one transfer study for each combination of the other settings that vary.

        Use it if the space has more than learning rates, rules and seeds: {"weight_decay": ...,
        "init": ...}. `options` are those of `Transfer.from_frame`, without `where`.
        """
        from orderone.sweeping.combinations import Transfers

        return Transfers.from_frame(self._frame_with_tokens(), **self._study_options(options))

    def _study_options(self, options: Mapping[str, object]) -> dict[str, Any]:
        keywords: dict[str, Any] = {**self._job_options(), **options}
        keywords.setdefault("histories", {key: out.losses for key, out in self.outcomes.items()})
        return keywords

    def _frame_with_tokens(self) -> Any:
        frame = self.frame
        if self.job is not None and self.job.sweeps_steps and "tokens" not in frame:
            return frame.assign(tokens=[self._tokens(key) for key in frame["key"]])
        return frame

    def _tokens(self, key: str) -> int:
        """Return the number of tokens that a trial was meant to see; samples, without tokens."""
        assert self.job is not None
        samples, per_sample = self.job.tokens_per_batch
        settings = self.job.settings_of(self.trials[key])
        size = self.trials[key].get("batch_size") or samples
        return settings.steps * self.job.accumulate * int(size) * per_sample

    def _job_options(self) -> dict[str, object]:
        """Return the base, the plan options and `build` of this sweep."""
        if self.job is None:
            return {}
        options: dict[str, object] = {
            "options": dict(self.job.plan_options),
            "build": self.job.build,
        }
        axis = self._growing_axis()
        if axis in self.job.base_sizes:
            options["base"] = self.job.base_sizes[axis]
        return options

    def _growing_axis(self) -> str:
        for axis in ("width", "depth"):
            if len({trial.get(axis) for trial in self.trials.values()}) > 1:
                return axis
        return "width"

    @property
    def edge_notes(self) -> list[str]:
        """Sentences on best learning rates at an end of their grid: a better one may be outside."""
        frame = self.frame
        if "lr" not in frame:
            return []
        places: dict[str, list[str]] = {}
        best = self.best()
        arm = [name for name in ARM if name in best]
        rates_of: dict[tuple[object, ...], set[float]] = {}
        for row in frame.to_dict("records"):
            rates_of.setdefault(tuple(row[name] for name in arm), set()).add(float(row["lr"]))
        for row in best.to_dict("records"):
            rates = rates_of.get(tuple(row[name] for name in arm), set())
            if len(rates) < 2:
                continue
            best_lr = float(row["lr"])
            place = " ".join(str(row[name]) for name in arm)
            if best_lr == min(rates):
                places.setdefault(f"smallest lr, {best_lr:.3g}", []).append(place)
            elif best_lr == max(rates):
                places.setdefault(f"largest lr, {best_lr:.3g}", []).append(place)
        notes: list[str] = []
        for end, names in places.items():
            text = f"the best lr is the {end}, for {'; '.join(names)}: widen the grid beyond it"
            notes.append(with_code(text, "optimum-outside-grid"))
        return notes

    @property
    def summary(self) -> str:
        """Number of trials by status, such as "36 trials: 35 done, 1 diverged"."""
        counts: dict[str, int] = {}
        for key in self.trials:
            if key in self.outcomes:
                status = self.outcomes[key].status
            else:
                status = "not run"
            counts[status] = counts.get(status, 0) + 1
        if not counts:
            return "no trials"
        parts = [f"{number} {status}" for status, number in counts.items()]
        return f"{len(self.trials)} trials: {', '.join(parts)}"

    def __repr__(self) -> str:
        store = f", store={self.store!r}" if self.store else ""
        return f"<Sweep of {self.summary}{store}>"

    def _repr_html_(self) -> str:
        """Return the summary and the table of best settings for notebooks."""
        best = self.best()
        tables = []
        if len(best):
            rows = [[_cell(value) for value in row] for row in best.itertuples(index=False)]
            tables.append([[str(name) for name in best], *rows])
        return notebook_html(self.summary, tables, [*self.edge_notes, *self.notes])

    def __str__(self) -> str:
        lines = [self.summary]
        if self.store:
            lines = [f"{self.summary} (stored in {self.store})"]
        best = self.best()
        if len(best):
            lines += _best_table(best)
        notes = [*self.edge_notes, *self.notes]
        for note in notes:
            lines += wrapped(f"note: {note}", indent=0)
        return printable("\n".join([*lines, *hint_on_codes(notes)]))


def _best_table(best: "pandas.DataFrame") -> list[str]:
    """Return the lines of a table of `Sweep.best`.

    If it is too wide, settings that are the same in all rows are listed once above the table.
    """
    columns: dict[str, list[str]] = {}
    for name in best:
        columns[str(name)] = [_cell(value) for value in best[name]]
    title = wrapped("best settings for every rule and size (mean loss over seeds):", indent=0)
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    lines = text_table(rows)
    if max(len(line) for line in lines) <= text_width():
        return [*title, *lines]
    common: list[str] = []
    for name in list(columns):
        if name not in ("loss", "seeds") and len(set(columns[name])) == 1:
            common.append(f"{name} {columns.pop(name)[0]}")
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    return [*title, *wrapped(f"all with {', '.join(common)}"), *text_table(rows)]


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _row(trial: Trial, outcome: Outcome) -> dict[str, object]:
    evaluation = nan
    if outcome.evaluation:
        _, evaluation = outcome.evaluation[-1]
    diverged = outcome.status == "diverged"
    made = len(outcome.losses)
    amounts: dict[str, object] = {"steps": made}
    if trial.get("steps") is not None:
        amounts = {"steps": trial.get("steps"), "updates": made}
    return {
        **trial.settings,
        "loss": inf if diverged else outcome.final,
        "evaluation": evaluation,
        "diverged": diverged,
        **amounts,
        "seconds": outcome.seconds,
        "status": outcome.status,
        "error": outcome.error,
        "key": trial.key,
    }
