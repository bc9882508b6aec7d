"""Checkpoints of unfinished trainings: one safetensors file with JSON in its header.

A file is written under a temporary name, flushed to the disk, and renamed: a power cut leaves the
old file or the new one. Nothing is pickled. The header lists the trials in the file, so that it can
be removed when all of them are done.
"""

import json
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from orderone.training.outcome import read_evaluation

if TYPE_CHECKING:
    from orderone.training.loop import TrainingLoop

FORMAT = 2  # 2: an optimizer has state in groups and attributes
SUFFIX = ".safetensors"
Record: TypeAlias = dict[str, Any]  # JSON
_LENGTH = 8  # bytes that hold the length of the header


# --- files ----------------------------------------------------------------------------------------


def save(path: Path, tensors: Mapping[str, Tensor], record: Record) -> None:
    """Write tensors and a record; `record["keys"]` are the keys of the trials in the file.

    Raise an OSError if the disk is full.
    """
    from safetensors.torch import save as to_bytes

    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        plain[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    content = to_bytes(plain, {"orderone": json.dumps({"format": FORMAT, **record})})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> tuple[dict[str, Tensor], Record] | None:
    """Return the tensors and the record; None if the file is missing or has another format."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    record = header(path)
    if record is None:
        return None
    try:
        return load_file(path), record
    except (OSError, SafetensorError):
        return None


def header(path: Path) -> Record | None:
    """Return the record alone, without reading tensors."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(_LENGTH))
            record = json.loads(json.loads(file.read(length))["__metadata__"]["orderone"])
    except (OSError, ValueError, KeyError, TypeError, struct.error, MemoryError, OverflowError):
        return None
    if isinstance(record, dict) and record.get("format") == FORMAT:
        return record
    return None


def remove_finished(folder: Path, done: Iterable[str]) -> None:
    """Remove checkpoints whose trials are all done."""
    if not folder.is_dir():
        return
    finished = set(done)
    for path in folder.glob(f"*{SUFFIX}"):
        record = header(path)
        if record is not None and finished.issuperset(record.get("keys", ())):
            path.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove temporary files of writers that were killed."""
    if not folder.is_dir():
        return
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)


# --- the state of a training ----------------------------------------------------------------------


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, shared ones once."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators: "cpu", and "cuda" on a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def named_random_states(tensors: Mapping[str, Tensor], suffix: str = "") -> dict[str, Tensor]:
    """Return the random states that were saved as random.cpu and random.cuda, with a suffix."""
    states: dict[str, Tensor] = {}
    for kind in ("cpu", "cuda"):
        name = f"random.{kind}{suffix}"
        if name in tensors:
            states[kind] = tensors[name]
    return states


def restore_random(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def restore_progress(loop: "TrainingLoop", record: Record) -> None:
    loop.losses = list(record["losses"])
    loop.seconds = float(record["seconds"])
    loop.evaluation = read_evaluation(record["evaluation"])


def pack(tree: object, tensors: dict[str, Tensor], name: str) -> object:
    """Return JSON for nested dicts and lists.

    Tensors go into `tensors` under names that begin with `name`.
    """
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {"tensor": name}
    if isinstance(tree, Mapping):
        pairs = [[key, pack(value, tensors, f"{name}.{key}")] for key, value in tree.items()]
        return {"dict": pairs}
    if isinstance(tree, (list, tuple)):
        return {"list": [pack(value, tensors, f"{name}.{i}") for i, value in enumerate(tree)]}
    return tree


def unpack(packed: object, tensors: Mapping[str, Tensor]) -> Any:
    """Return the tree that was passed to `pack`."""
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "dict" in packed:
        return {key: unpack(value, tensors) for key, value in packed["dict"]}
    return [unpack(value, tensors) for value in packed["list"]]
