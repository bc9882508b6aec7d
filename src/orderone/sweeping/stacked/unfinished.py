"""Checkpoints of unfinished stacks, and the choice of those to resume.

A checkpoint has the tensors of all members in the order of its keys. A later run may need only some
of the members (others have finished), and takes their slices.
"""

import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from orderone.core.canonical import digest
from orderone.core.errors import with_code
from orderone.sweeping.stacked.verify import Proof
from orderone.sweeping.trial import Trial
from orderone.training import checkpoint as checkpoints
from orderone.training.checkpoint import Record
from orderone.training.optimizer_state import unsaved_part
from orderone.training.outcome import read_evaluation
from orderone.training.repeated_updates import UPDATES, compared_loss, loss_rounding

if TYPE_CHECKING:
    from orderone.sweeping.stacked.training import StackedTraining

KIND = "stacked"
LARGEST = 4 << 30  # bytes; writing more takes longer than training again
PREFIX = "stack."


def unfinished(folder: Path | None, trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return groups of these trials that were saved as one stack, the most advanced first."""
    wanted = {trial.key: trial for trial in trials}
    groups: list[list[Trial]] = []
    for _, record in _saved(folder):
        group = [wanted.pop(key) for key in record["keys"] if key in wanted]
        if group:
            groups.append(group)
    return groups


def _saved(folder: Path | None) -> list[tuple[Path, Record]]:
    """Return the checkpoints of stacks in the folder, the most advanced first."""
    if folder is None or not folder.is_dir():
        return []
    stacks: list[tuple[Path, Record]] = []
    for path in sorted(folder.glob(f"*{checkpoints.SUFFIX}")):
        record = checkpoints.header(path)
        if record is not None and record.get("kind") == KIND:
            stacks.append((path, record))
    return sorted(stacks, key=lambda pair: -int(pair[1]["done"]))


def saved_proof(folder: Path | None, trials: Sequence[Trial]) -> Proof | None:
    """Return the proof of the stack that these trials continue; None if they start anew."""
    for _, record in _saved(folder):
        if {trial.key for trial in trials} <= set(record["losses"]):
            if "proof" in record:
                return Proof.read(record["proof"])
            return None
    return None


def save(training: "StackedTraining") -> None:
    """Write the state; if that fails, warn and continue the training."""
    if training.folder is None:
        return
    extra = checkpoints.extra_states(training.stack.program.model)
    if training.lost is None and unsaved_part(extra) is not None:
        training.lost = f"get_extra_state of a module returns {unsaved_part(extra)}"
    if training.lost is not None:
        if not training.job.warned(training.lost):
            text = f"a running stack has no checkpoint, because {training.lost}; it continues"
            warnings.warn(with_code(text, "checkpoint-not-written"), stacklevel=2)
        return
    state = training.stack.state()
    size = sum(x.numel() * x.element_size() for x in state.values())
    if size > LARGEST:
        text = (
            f"a running stack has no checkpoint, because its state has {size / 2**30:.1f} GiB;"
            f" writing more than {LARGEST >> 30} GiB takes longer than computing it again. The"
            " training continues"
        )
        if not training.job.warned(text):
            warnings.warn(with_code(text, "checkpoint-not-written"), stacklevel=2)
        return
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        tensors[f"{PREFIX}{name}"] = tensor
    for kind, random_state in checkpoints.random_states(training.device).items():
        tensors[f"random.{kind}"] = random_state
    record = _record(training) | {"extra": checkpoints.pack(extra, tensors, "extra")}
    path = training.folder / f"{digest(record['keys'])}{checkpoints.SUFFIX}"
    try:
        training.folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(training.folder).free < 2 * size:
            raise OSError(0, f"{2 * size / 2**20:.0f} MiB of free disk space are needed")
        checkpoints.save(path, tensors, record)
    except OSError as error:
        text = (
            f"cannot write the checkpoint of a running stack to {path} ({error.strerror}); the"
            " training continues"
        )
        warnings.warn(with_code(text, "checkpoint-not-written"), stacklevel=2)


def _record(training: "StackedTraining") -> Record:
    """Return the part of the state that is not in tensors."""
    keys = [trial.key for trial in training.slots]
    return {
        "kind": KIND,
        "keys": keys,
        "done": training.done,
        # of members that still train
        "losses": {key: training.losses[key] for key in keys if key in training.running},
        "evaluation": {key: training.evaluation[key] for key in keys},
        "seconds": {key: training.seconds[key] for key in keys},
        "proof": training.proof.fact(),
    }


def restore(training: "StackedTraining") -> None:
    """Continue from the most advanced checkpoint that has all members of the stack."""
    wanted = [trial.key for trial in training.slots]
    for path, record in _saved(training.folder):
        if not set(wanted) <= set(record["losses"]):
            continue
        saved = checkpoints.load(path)
        if saved is None or set(wanted) - set(saved[1]["losses"]):
            continue
        changed = _changed_tensor(training, saved[0])
        if changed is not None:
            text = (
                f"the checkpoint {path} belongs to another model under the same name: {changed};"
                " its trials start again"
            )
            warnings.warn(with_code(text, "checkpoint-of-other-training"), stacklevel=2)
            checkpoints.remove(path)
            continue
        different = _different_loss(training, wanted, path, saved[1])
        if different is not None:
            text = (
                f"trials start again, because {different}: they have state that no checkpoint"
                " holds, or are not repeatable; register a buffer for the state, or implement"
                " get_extra_state and set_extra_state"
            )
            warnings.warn(with_code(text, "resumed-differently"), stacklevel=2)
            checkpoints.remove(path)
            training.begin_again()
            continue
        _resume(training, wanted, *saved)
        return


def _different_loss(
    training: "StackedTraining", wanted: Sequence[str], path: Path, record: Record
) -> str | None:
    """Repeat updates between the last two checkpoints; return what differs."""
    earlier = checkpoints.load_earlier(path)
    if earlier is None or earlier[1].get("kind") != KIND or _changed_tensor(training, earlier[0]):
        return None
    first = int(earlier[1]["done"])
    for key in wanted:
        if earlier[1]["losses"].get(key) != record["losses"][key][:first]:
            return None
    _resume(training, wanted, *earlier)
    dtypes = {x.dtype for x in training.stack.parameters.values()}
    near = loss_rounding(dtypes, training.settings.half is not None, training.device)
    for step in range(first, min(first + UPDATES, int(record["done"]))):
        losses = training.repeated_step(step)
        for key, loss in zip(wanted, losses, strict=True):
            before = record["losses"][key]
            different = compared_loss(before, step, loss, first, near)
            if different is not None:
                return different
    return None


def _changed_tensor(training: "StackedTraining", tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Return which tensor has another shape than in the file, apart from the axis of members."""
    members = training.stack.state()
    for name in members | {
        name.removeprefix(PREFIX): x for name, x in tensors.items() if name.startswith(PREFIX)
    }:
        here = members.get(name)
        there = tensors.get(f"{PREFIX}{name}")
        if here is None or there is None or here.shape[1:] != there.shape[1:]:
            shapes = [None if x is None else tuple(x.shape[1:]) for x in (there, here)]
            return f"the shape of {name} is {shapes[0]} in the file and {shapes[1]} here"
    return None


def _resume(
    training: "StackedTraining",
    wanted: Sequence[str],
    tensors: Mapping[str, torch.Tensor],
    record: Record,
) -> None:
    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(PREFIX):
            state[name.removeprefix(PREFIX)] = tensor
    training.stack.load(state, [record["keys"].index(key) for key in wanted])
    extra = checkpoints.unpack(record.get("extra", {"dict": []}), tensors)
    checkpoints.restore_extra(training.stack.program.model, extra)
    training.done = int(record["done"])
    for key in wanted:
        training.losses[key] = list(record["losses"][key])
        training.evaluation[key] = read_evaluation(record["evaluation"][key])
        training.seconds[key] = float(record["seconds"][key])
    checkpoints.restore_random(checkpoints.named_random_states(tensors), training.device)
