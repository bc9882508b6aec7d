"""Checkpoints of trials that run one after another."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from orderone.training import checkpoint as checkpoints
from orderone.training.checkpoint import Record
from orderone.training.loop import TrainingLoop

KIND = "alone"


class TrialCheckpoint:
    """The file of one trial in the folder beside a store; `warned` says each warning only once."""

    saves_finished: bool = False

    def __init__(self, folder: Path, key: str, warned: Callable[[str], bool]):
        self.path: Path = folder / f"{key}{checkpoints.SUFFIX}"
        self.key = key
        self.warned = warned

    def save(self, loop: TrainingLoop) -> None:
        """Write the state. A failure costs a restart, not the training."""
        optimizer = loop.step.optimizer.state_dict()["state"]
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
            if not self.warned(str(self.path.parent)):
                warnings.warn(
                    f"no checkpoint of a running trial: {self.path} ({error.strerror}); it goes on",
                    stacklevel=2,
                )

    def restore(self, loop: TrainingLoop) -> None:
        """Go on from the file, if it is one of this trial."""
        saved = checkpoints.load(self.path)
        if saved is None:
            return
        tensors, record = saved
        if record.get("kind") != KIND or record.get("keys") != [self.key]:
            return
        with torch.no_grad():
            for name, value in checkpoints.model_tensors(loop.step.module).items():
                value.copy_(tensors[f"model.{name}"])
        optimizer = loop.step.optimizer
        groups = optimizer.state_dict()["param_groups"]
        state = checkpoints.unpack(record["optimizer"], tensors)
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        checkpoints.restore_random(checkpoints.named_random_states(tensors), loop.world.device)
        checkpoints.restore_progress(loop, record)
