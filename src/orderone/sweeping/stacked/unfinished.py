"""Half-run stacks on disk, and which of them can be taken up again.

A checkpoint holds the tensors of all members in the order of its keys. Whoever goes on may want
only some of them (others are done since), and takes their slices.
"""

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from orderone.core.canonical import digest
from orderone.sweeping.trial import Trial
from orderone.training import checkpoint as checkpoints

if TYPE_CHECKING:
    from orderone.sweeping.stacked.training import StackedTraining

LARGEST = 4 << 30  # bytes: what takes longer to write than to train again is not written


def unfinished(folder: Path | None, trials: Sequence[Trial]) -> list[list[Trial]]:
    """Groups of these trials that were in one stack when it was saved, the furthest first."""
    wanted = {trial.key: trial for trial in trials}
    found = []
    for _, record in _saved(folder):
        group = [wanted.pop(key) for key in record["keys"] if key in wanted]
        if group:
            found.append(group)
    return found


def _saved(folder: Path | None) -> list[tuple[Path, dict[str, Any]]]:
    if folder is not None and folder.is_dir():
        paths = sorted(folder.glob(f"*{checkpoints.SUFFIX}"))
    else:
        paths = []
    records = [(path, checkpoints.header(path)) for path in paths]
    stacks = [
        (path, record) for path, record in records if record and record.get("kind") == "stacked"
    ]
    return sorted(stacks, key=lambda pair: -int(pair[1]["done"]))


def save(training: "StackedTraining") -> None:
    """A checkpoint that cannot be written costs a restart, not the training."""
    if training.folder is None:
        return
    state = training.stack.state()
    size = sum(x.numel() * x.element_size() for x in state.values())
    if size > LARGEST:
        return
    keys = [trial.key for trial in training.slots]
    tensors = {f"stack.{name}": x for name, x in state.items()} | {
        "random.cpu": torch.get_rng_state()
    }
    if training.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(training.device)
    record = {
        "kind": "stacked",
        "keys": keys,
        "done": training.done,
        "losses": {key: training.losses[key] for key in keys if key in training.going},
        "evaluation": {key: training.evaluation[key] for key in keys},
        "seconds": {key: training.seconds[key] for key in keys},
    }
    path = training.folder / f"{digest(keys)}{checkpoints.SUFFIX}"
    try:
        training.folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(training.folder).free < 2 * size:
            raise OSError(0, f"{2 * size / 2**20:.0f} MiB are wanted, and the disk has less")
        checkpoints.save(path, tensors, record)
    except OSError as error:
        warnings.warn(
            f"no checkpoint of a running stack: {path} ({error.strerror}); it goes on", stacklevel=2
        )


def restore(training: "StackedTraining") -> None:
    """Go on from the furthest checkpoint that has all of its members."""
    wanted = [trial.key for trial in training.slots]
    for path, record in _saved(training.folder):
        if set(wanted) <= set(record["losses"]) and (found := checkpoints.load(path)):
            _take(training, wanted, *found)
            return


def _take(
    training: "StackedTraining",
    wanted: list[str],
    tensors: dict[str, torch.Tensor],
    record: dict[str, Any],
) -> None:
    prefix = "stack."
    state = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    training.stack.load(state, [record["keys"].index(key) for key in wanted])
    training.done = int(record["done"])
    for key in wanted:
        training.losses[key] = list(record["losses"][key])
        training.evaluation[key] = [
            (int(step), float(value)) for step, value in record["evaluation"][key]
        ]
        training.seconds[key] = float(record["seconds"][key])
    torch.set_rng_state(tensors["random.cpu"])
    if training.device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], training.device)
