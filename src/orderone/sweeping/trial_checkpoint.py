"""Checkpoints of trials that run one after another."""

import warnings
from collections.abc import Callable
from pathlib import Path

from orderone.core.errors import with_code
from orderone.training import checkpoint as checkpoints
from orderone.training import optimizer_state
from orderone.training.checkpoint import Record
from orderone.training.loop import TrainingLoop
from orderone.training.model_structure import lost_structure, resized_tensors, resized_text
from orderone.training.repeated_updates import can_be_repeated, different_loss
from orderone.training.resume_check import ResumeCheck, reshaped_text
from orderone.training.snapshot import MODEL, restore_snapshot, snapshot

KIND = "alone"


class StartAgain(Exception):  # noqa: N818  # not an error: the trial is built anew
    """A checkpoint does not continue its trial. It was removed."""


class TrialCheckpoint:
    """File of one trial in the folder beside a store.

    `warned(text)` returns whether a warning was given before. `other()` makes the same training
    once more, to check once that a file holds all its state; None if that was checked before.
    """

    saves_finished: bool = False

    def __init__(
        self,
        folder: Path,
        key: str,
        warned: Callable[[str], bool],
        other: Callable[[], TrainingLoop] | None = None,
        lost: str | None = None,
        checked: Callable[[str | None], None] | None = None,
    ):
        self.path: Path = folder / f"{key}{checkpoints.SUFFIX}"
        self.key = key
        self.warned = warned
        self.other = other
        self.lost = lost  # state that a file would not hold
        self.checked = checked
        self.pending: ResumeCheck | None = None

    def check(self, loop: TrainingLoop) -> None:
        """Check after the first two updates that a file would hold all state of the training.

        A trial that cannot be saved is trained all the same.
        """
        if self.pending is not None:
            self.lost = self.pending.after_second_update(loop) or self.pending.later
            self.pending = None
            if self.checked is not None:
                self.checked(self.lost)
        elif self.other is not None:
            self.pending = ResumeCheck(self.other())
            self.other = None
            try:
                self.pending.after_first_update(loop)
            except optimizer_state.NotSavedError:
                self.pending = None  # `save` says so

    def save(self, loop: TrainingLoop) -> None:
        """Write the state; if that fails, warn and continue the training."""
        if self.pending is not None:
            return  # not before the check has ended
        resized = resized_tensors(loop.layouts, loop.step.module)
        if self.lost is None and resized:
            self.lost = reshaped_text(resized_text(resized))
        if self.lost is not None:
            self._warn_once(f"a running trial has no checkpoint, because {self.lost}")
            return
        try:
            tensors, record = snapshot(loop)
        except optimizer_state.NotSavedError as error:
            self._warn_once(f"a running trial has no checkpoint, because {error}")
            return
        try:
            checkpoints.save(self.path, tensors, {"keys": [self.key], "kind": KIND, **record})
        except OSError as error:
            self._warn_once(
                f"cannot write the checkpoint of a running trial to {self.path.parent}"
                f" ({error.strerror})"
            )

    def _warn_once(self, reason: str) -> None:
        if not self.warned(reason):
            text = f"{reason}; the training continues"
            warnings.warn(with_code(text, "checkpoint-not-written"), stacklevel=3)

    def restore(self, loop: TrainingLoop) -> None:
        """Continue from the file, if it belongs to this trial and to the model as it is now.

        Raise StartAgain if updates before it have other losses when they are repeated.
        """
        self._verify(loop)
        saved = checkpoints.load(self.path)
        if saved is None:
            return
        tensors, record = saved
        if not self._is_of_trial(record):
            return
        changed = checkpoints.changed_tensor(loop.step.module, tensors, MODEL)
        if changed is not None:
            text = (
                f"the checkpoint {self.path} belongs to another model under the same name:"
                f" {changed}; the trial starts again"
            )
            warnings.warn(with_code(text, "checkpoint-of-other-training"), stacklevel=2)
            checkpoints.remove(self.path)
            return
        restore_snapshot(loop, saved)

    def _verify(self, loop: TrainingLoop) -> None:
        """Raise StartAgain if the last file does not hold all state of the trial."""
        record = checkpoints.header(self.path)
        if record is None or not self._is_of_trial(record):
            return
        different = lost_structure(loop.step.module, record.get("structure", {}))
        if different is None:
            different = self._different_loss(loop, record)
        if different is None:
            return
        text = (
            f"a trial starts again, because {different}: it has state that no checkpoint holds, or"
            " is not repeatable; register a buffer for the state, or implement get_extra_state and"
            " set_extra_state"
        )
        warnings.warn(with_code(text, "resumed-differently"), stacklevel=2)
        checkpoints.remove(self.path)
        raise StartAgain

    def _different_loss(self, loop: TrainingLoop, record: Record) -> str | None:
        """Repeat updates between the last two files; return what differs."""
        earlier = checkpoints.load_earlier(self.path)
        if earlier is None or not self._is_of_trial(earlier[1]):
            return None
        if not can_be_repeated(loop, record, earlier[1]):
            return None
        if checkpoints.changed_tensor(loop.step.module, earlier[0], MODEL) is not None:
            return None
        restore_snapshot(loop, earlier)
        return different_loss(loop, record["losses"])

    def _is_of_trial(self, record: Record) -> bool:
        return record.get("kind") == KIND and record.get("keys") == [self.key]
