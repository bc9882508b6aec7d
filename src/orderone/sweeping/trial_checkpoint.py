"""Checkpoints of trials that run one after another."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from orderone.core.errors import with_code
from orderone.training import checkpoint as checkpoints
from orderone.training import optimizer_state
from orderone.training.checkpoint import Record
from orderone.training.loop import TrainingLoop

KIND = "alone"


class TrialCheckpoint:
    """File of one trial in the folder beside a store.

    `warned(text)` returns whether a warning was given before.
    """

    saves_finished: bool = False

    def __init__(self, folder: Path, key: str, warned: Callable[[str], bool]):
        self.path: Path = folder / f"{key}{checkpoints.SUFFIX}"
        self.key = key
        self.warned = warned

    def check(self, loop: TrainingLoop) -> None:
        """Do nothing: a trial that cannot be saved is trained all the same."""

    def save(self, loop: TrainingLoop) -> None:
        """Write the state; if that fails, warn and continue the training."""
        try:
            optimizer = optimizer_state.state_of(loop.step.optimizer)
        except optimizer_state.NotSavedError as error:
            self._warn_once(f"a running trial has no checkpoint, because {error}")
            return
        tensors: dict[str, torch.Tensor] = {}
        for name, value in checkpoints.model_tensors(loop.step.module).items():
            tensors[f"model.{name}"] = value
        for kind, state in checkpoints.random_states(loop.world.device).items():
            tensors[f"random.{kind}"] = state
        record: Record = {
            "keys": [self.key],
            "kind": KIND,
            "losses": loop.losses,
            "evaluation": loop.evaluation,
            "seconds": loop.seconds,
            "optimizer": checkpoints.pack(optimizer, tensors, "optimizer"),
        }
        try:
            checkpoints.save(self.path, tensors, record)
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
        """Continue from the file, if it belongs to this trial."""
        saved = checkpoints.load(self.path)
        if saved is None:
            return
        tensors, record = saved
        if record.get("kind") != KIND or record.get("keys") != [self.key]:
            return
        with torch.no_grad():
            for name, value in checkpoints.model_tensors(loop.step.module).items():
                value.copy_(tensors[f"model.{name}"])
        state = checkpoints.unpack(record["optimizer"], tensors)
        optimizer_state.load_state(loop.step.optimizer, state)
        checkpoints.restore_random(checkpoints.named_random_states(tensors), loop.world.device)
        checkpoints.restore_progress(loop, record)
