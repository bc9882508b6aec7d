"""Checkpoints of `train`: unsharded tensors in one safetensors file.

Shards are gathered tensor by tensor, so that one process can read what four wrote, and the
reverse. The file has the random states of every process; they are restored if the number of
processes is the same. Nothing is pickled.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import InputError, with_code
from orderone.torch_compat import tree_map
from orderone.training import checkpoint as checkpoints
from orderone.training import optimizer_state
from orderone.training.checkpoint import Record
from orderone.training.loop import TrainingLoop
from orderone.training.model_structure import (
    lost_structure,
    resized_by_training,
    resized_tensors,
    resized_text,
)
from orderone.training.repeated_updates import can_be_repeated, different_loss
from orderone.training.resume_check import ResumeCheck, reshaped_text
from orderone.training.world import World, like, whole

KIND = "train"
REMEDY = "remove the file to start again, or pass another path"


class TrainCheckpoint:
    """File of one training; `identity` has the settings that must agree to continue.

    `other` is a copy of the training before its first update, to check that a file holds all state.
    """

    saves_finished: bool = True

    def __init__(
        self,
        path: Path,
        world: World,
        identity: Mapping[str, object],
        other: TrainingLoop | None = None,
    ):
        self.path = path
        self.world = world
        self.identity = identity
        self.other = other
        self.pending: ResumeCheck | None = None
        self.resized: bool = False  # whether a warning about resized tensors was given

    # --- writing ----------------------------------------------------------------------------------

    def check(self, loop: TrainingLoop) -> None:
        """Raise an InputError if the training has a state that no file can hold."""
        if self.pending is not None:
            lost = self.pending.after_second_update(loop)
            later = self.pending.later or self.pending.doubt
            self.pending = None
            if later is not None:
                text = f"checkpoint: {later}"
                warnings.warn(with_code(text, "state-may-be-lost"), stacklevel=2)
            if lost is not None:
                message = f"checkpoint: {lost}; or train without checkpoint="
                raise InputError(message, "state-not-saved", argument="checkpoint")
            return
        self._optimizer_state(loop)
        unsaved = optimizer_state.unsaved_part(checkpoints.extra_states(loop.step.module))
        if unsaved is not None:
            raise InputError(
                f"checkpoint: get_extra_state of a module returns {unsaved}, which no file can hold"
                " without pickle; return tensors, numbers and texts, or train without checkpoint=",
                "state-not-saved",
                argument="checkpoint",
            )
        if self.other is not None:
            self.pending = ResumeCheck(self.other)
            self.other = None
            self.pending.after_first_update(loop)

    def save(self, loop: TrainingLoop) -> None:
        """Write the state; all processes must call this, and the first one writes.

        If that fails, warn and continue: a full disk must not end a training. Before the second
        update nothing is written, unless it is the last: `check` has not ended.
        """
        if self.pending is not None and loop.done < loop.settings.steps:
            return
        self.warn_if_resized(loop)
        tensors: dict[str, Tensor] = {}
        for name, value in checkpoints.model_tensors(loop.step.module).items():
            self._add(tensors, f"model.{name}", whole(value.detach()))
        state = tree_map(self._collected, self._optimizer_state(loop))
        extra = checkpoints.extra_states(loop.step.module)
        for kind, random_state in checkpoints.random_states(self.world.device).items():
            for rank, value in enumerate(self.world.gathered(random_state)):
                self._add(tensors, f"random.{kind}.{rank}", value)
        if self.world.first:
            record: Record = {
                "kind": KIND,
                "keys": [],
                "of": dict(self.identity),
                **checkpoints.progress(loop),
                "optimizer": checkpoints.pack(state, tensors, "optimizer"),
                "extra": checkpoints.pack(extra, tensors, "extra"),
                "start_sizes": {} if loop.monitor is None else loop.monitor.start,
            }
            try:
                checkpoints.save(self.path, tensors, record)
            except OSError as error:
                text = (
                    f"cannot write the checkpoint {self.path} ({error.strerror}) after"
                    f" {loop.done} updates; the training continues, and tries again later"
                )
                warnings.warn(with_code(text, "checkpoint-not-written"), stacklevel=2)
        self.world.wait()

    def warn_if_resized(self, loop: TrainingLoop) -> None:
        """Warn once if training has resized tensors after the check of its first updates."""
        resized = resized_tensors(loop.layouts, loop.step.module)
        if self.resized or not resized:
            return
        self.resized = True
        if self.world.first:
            text = f"checkpoint: {reshaped_text(resized_text(resized))}"
            warnings.warn(with_code(text, "state-may-be-lost"), stacklevel=4)

    def _optimizer_state(self, loop: TrainingLoop) -> object:
        try:
            return optimizer_state.state_of(loop.step.optimizer)
        except optimizer_state.NotSavedError as error:
            message = f"checkpoint: {error}; train without checkpoint="
            raise InputError(message, argument="checkpoint") from error

    def _collected(self, value: object) -> object:
        """Return a gathered tensor on the first process, and an empty one on the others."""
        if not isinstance(value, Tensor):
            return value
        gathered = whole(value)
        if self.world.first:
            return gathered.cpu()
        return torch.empty(0)

    def _add(self, tensors: dict[str, Tensor], name: str, value: Tensor) -> None:
        if self.world.first:
            tensors[name] = value.cpu()

    # --- reading ----------------------------------------------------------------------------------

    def verify(self, loop: TrainingLoop) -> None:
        """Warn if updates between the last two files have other losses when they are repeated.

        Call `restore` afterwards. A file of another training is left to it.
        """
        record = checkpoints.header(self.path)
        if record is None or record.get("kind") != KIND or dict(self.identity) != record["of"]:
            return
        if resized_by_training(record.get("resized", {}), loop.step.module) is not None:
            return  # `restore` says so
        lost = lost_structure(loop.step.module, record.get("structure", {}))
        if lost is not None:
            self._warn(lost)
            return
        earlier = checkpoints.load_earlier(self.path)
        if earlier is None or not can_be_repeated(loop, record, earlier[1]):
            return
        tensors, earlier_record = earlier
        if checkpoints.changed_tensor(loop.step.module, tensors, "model.") is not None:
            return
        self._load(loop, tensors, earlier_record)
        self._compare(loop, record["losses"])

    def _compare(self, loop: TrainingLoop, losses: Sequence[float]) -> None:
        different = different_loss(loop, losses)
        if different is not None:
            self._warn(different)

    def _warn(self, different: str) -> None:
        if not self.world.first:
            return
        text = (
            f"checkpoint: {different}: the training has state that no checkpoint holds, or is not"
            " repeatable; it continues from the last checkpoint, and differs from a training"
            " without an interruption; register a buffer for the state, or implement"
            " get_extra_state and set_extra_state"
        )
        warnings.warn(with_code(text, "resumed-differently"), stacklevel=4)

    def restore(self, loop: TrainingLoop) -> None:
        """Continue from the file, if there is one.

        Raise an InputError if the file belongs to another training.
        """
        if not self.path.exists() and not checkpoints.previous(self.path).exists():
            return
        saved = checkpoints.load(self.path, remove_damaged=False)
        if saved is None or saved[1].get("kind") != KIND:
            raise InputError(
                f"checkpoint: {self.path} is not a checkpoint of o1.train; {REMEDY}",
                "not-a-checkpoint",
                argument="checkpoint",
            )
        tensors, record = saved
        self._check_model(loop, tensors, record)
        self._check_identity(record["of"])
        self._load(loop, tensors, record)
        if loop.monitor is not None:
            loop.monitor.first = loop.done
            loop.monitor.start |= record.get("start_sizes", {})

    def _load(self, loop: TrainingLoop, tensors: Mapping[str, Tensor], record: Record) -> None:
        with torch.no_grad():
            for name, value in checkpoints.model_tensors(loop.step.module).items():
                value.copy_(like(tensors[f"model.{name}"], value))
        state = checkpoints.unpack(record["optimizer"], tensors)
        _restore_optimizer(loop.step.optimizer, state)
        extra = checkpoints.unpack(record.get("extra", {"dict": []}), tensors)
        checkpoints.restore_extra(loop.step.module, extra)
        self._restore_random(tensors)
        checkpoints.restore_progress(loop, record)

    def _check_model(
        self, loop: TrainingLoop, tensors: Mapping[str, Tensor], record: Record
    ) -> None:
        changed = checkpoints.changed_tensor(loop.step.module, tensors, "model.")
        resized = resized_by_training(record.get("resized", {}), loop.step.module)
        if changed is not None and resized is not None:
            raise InputError(
                f"checkpoint: {self.path} cannot be loaded into this model, because"
                f" {reshaped_text(resized)}; or build the model with the shapes of the file to"
                " continue",
                "state-not-saved",
                argument="checkpoint",
            )
        if changed is not None:
            raise InputError(
                f"checkpoint: {self.path} belongs to another model: {changed}; {REMEDY}",
                "checkpoint-of-other-training",
                argument="checkpoint",
            )

    def _check_identity(self, saved: Mapping[str, object]) -> None:
        current = dict(self.identity)
        for name in current | dict(saved):
            if saved.get(name) != current.get(name):
                raise InputError(
                    f"checkpoint: {self.path} was written with {name} {saved.get(name)}, but this"
                    f" training has {current.get(name)}; {REMEDY}",
                    "checkpoint-of-other-training",
                    argument="checkpoint",
                )

    def _restore_random(self, tensors: Mapping[str, Tensor]) -> None:
        processes = sum(name.startswith("random.cpu.") for name in tensors)
        if processes == self.world.size:
            states = checkpoints.named_random_states(tensors, f".{self.world.rank}")
            checkpoints.restore_random(states, self.world.device)


def _restore_optimizer(optimizer: Optimizer, tree: dict[str, Any]) -> None:
    """Load the state; shard tensors that have the shape of their parameter like the parameter."""
    state: dict[int, dict[str, object]] = tree["state"]
    groups = optimizer.state_dict()["param_groups"]
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters.extend(group["params"])
    numbers: list[int] = []
    for group in groups:
        numbers.extend(group["params"])
    placed: dict[int, dict[str, object]] = {}
    for number, parameter in zip(numbers, parameters, strict=True):
        if number not in state:
            continue
        placed[number] = {}
        for name, value in state[number].items():
            if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
                value = like(value, parameter)
            placed[number][name] = value
    optimizer_state.load_state(optimizer, {**tree, "state": placed})


def check_path(path: Path) -> None:
    """Create the folder before the training starts; raise an InputError if that fails."""
    if path.suffix not in (checkpoints.SUFFIX, ""):
        raise InputError(
            f"checkpoint: expected a file that ends in {checkpoints.SUFFIX}, or a folder without a"
            f" dot in its name; got {path}",
            argument="checkpoint",
        )
    if path.suffix == "" and path.is_file():
        raise InputError(
            f"checkpoint: {path} is a file; expected a folder, or a file that ends in"
            f" {checkpoints.SUFFIX}",
            argument="checkpoint",
        )
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"checkpoint: cannot create the folder {folder} ({error.strerror}); pass another path",
            argument="checkpoint",
        ) from error
    if not os.access(folder, os.W_OK):
        raise InputError(
            f"checkpoint: cannot write to the folder {folder}; pass another path",
            argument="checkpoint",
        )
    checkpoints.remove_temporary(folder, path.name)
