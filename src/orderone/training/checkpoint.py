"""Half-run trainings on disk: one safetensors file with JSON in its header, replaced as a whole or
not at all.

A file is written under a temporary name, flushed to the disk, and renamed: a power cut leaves the
old one or the new one. Nothing is pickled. The header tells which trials it holds, so that it can
be removed when all of them are done.
"""

import json
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FORMAT = 1
SUFFIX = ".safetensors"
_LENGTH = 8  # bytes that hold the length of the header


def save(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """`record` is JSON; its "keys" are those of the trials inside. An OSError if the disk is
    full."""
    from safetensors.torch import save as to_bytes

    plain = {
        name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, x in tensors.items()
    }
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


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What was saved; None if there is no file, or none of this format."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    record = header(path)
    if record is None:
        return None
    try:
        return load_file(path), record
    except (OSError, SafetensorError):
        return None


def header(path: Path) -> dict[str, Any] | None:
    """The JSON alone, without reading tensors."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(_LENGTH))
            found = json.loads(json.loads(file.read(length))["__metadata__"]["orderone"])
    except (OSError, ValueError, KeyError, TypeError, struct.error, MemoryError, OverflowError):
        return None
    if isinstance(found, dict) and found.get("format") == FORMAT:
        return found
    return None


def remove_finished(folder: Path, done: Iterable[str]) -> None:
    """Checkpoints of trials that are all done, and what a killed writer left."""
    finished = set(done)
    for path in folder.glob(f"*{SUFFIX}") if folder.is_dir() else ():
        record = header(path)
        if record is not None and finished.issuperset(record.get("keys", ())):
            path.unlink(missing_ok=True)


def sweep_up(folder: Path) -> None:
    """Temporary files of writers that are gone."""
    for path in folder.glob("*.tmp") if folder.is_dir() else ():
        path.unlink(missing_ok=True)


def pack(tree: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """JSON for nested dicts and lists, whose tensors go into `tensors` under names that begin with
    `name`."""
    if isinstance(tree, Tensor):
        tensors[name] = tree
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {
            "dict": [[key, pack(value, tensors, f"{name}.{key}")] for key, value in tree.items()]
        }
    if isinstance(tree, (list, tuple)):
        return {"list": [pack(value, tensors, f"{name}.{i}") for i, value in enumerate(tree)]}
    return tree


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "dict" in packed:
        return {key: unpack(value, tensors) for key, value in packed["dict"]}
    return [unpack(value, tensors) for value in packed["list"]]
