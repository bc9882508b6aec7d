"""State that trials of one process share and change, seen from one trial."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from orderone.core.errors import brief
from orderone.seeding import preserved
from orderone.sweeping.example_loss import changed_example_loss
from orderone.sweeping.job import Job
from orderone.sweeping.repeated_start import Start, different_start, recorded
from orderone.sweeping.trial import Trial
from orderone.training.code_state import global_texts
from orderone.training.loop import TrainingLoop
from orderone.training.resume_check import LARGEST, changed, model_bytes

_BEGUN: set[tuple[str, str]] = set()  # code or name of `build`, and program, of earlier trials


class SharedState:
    """Compares global variables before and after a trial, and repeats the start of the first one.

    The first trial may fill caches; what changes again is state. A variable that `build` makes for
    each model, such as one that a function of the model has captured, is not shared. `loop` is the
    trial before its first update.
    """

    def __init__(self, job: Job, trial: Trial, loop: TrainingLoop):
        self.job = job
        self.trial = trial
        self.first: Start | None = job.starts.get(trial.program)
        self.before: dict[str, str] | None = None
        model = (str(job.described["build"]), trial.program)
        self.is_later: bool = model in _BEGUN
        _BEGUN.add(model)
        if job.warned(f"trained {trial.program}"):
            self.before = global_texts(loop.step.module, job.loss)

    @contextmanager
    def watched(self, loop: TrainingLoop, outputs: bool) -> Iterator[None]:
        """Record the start of the training that runs in this context, if it is the first."""
        if self.first is not None or not self.job.verify:
            yield
            return
        start = Start(self.trial, is_later=self.is_later)
        with recorded(loop, start, outputs and loop.world.device.type == "cpu"):
            yield
        if start.complete:
            self.job.starts[self.trial.program] = start

    def changes(self, loop: TrainingLoop, make: Callable[[Trial], TrainingLoop]) -> str | None:
        """Return what the trial has changed that others share; None if nothing was found.

        `make` returns the training of a trial before its first update.
        """
        names = self._changed_names(loop, make)
        if names:
            return f"training changes {' and '.join(names[:3])}, which trials share"
        start = self.job.starts.get(self.trial.program)
        if start is None:
            return None
        start.trained += 1
        if not start.is_repeated_now or model_bytes(loop.step.module) > LARGEST:
            return None
        try:
            different = different_start(start, make)
            return different or changed_example_loss(self.job, self.trial.program)
        except Exception as error:  # the user's code may raise anything
            return (
                f"the trial {start.trial} could not be repeated after {start.trained} trials"
                f" ({brief(error)})"
            )

    def _changed_names(
        self, loop: TrainingLoop, make: Callable[[Trial], TrainingLoop]
    ) -> list[str]:
        """Return the variables that the trial has changed and that a new model of it finds changed.

        What a new model finds as this trial has found it was made for that model.
        """
        if self.before is None:
            return []
        names = changed(self.before, global_texts(loop.step.module, self.job.loss))
        if not names or model_bytes(loop.step.module) > LARGEST:
            return names
        try:
            with preserved():
                new = make(self.trial)
        except Exception:  # the user's code may raise anything
            return names
        found = changed(self.before, global_texts(new.step.module, self.job.loss))
        return [name for name in names if name in found]
