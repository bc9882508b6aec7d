"""Checkpoints of unfinished trainings: one safetensors file with JSON in its header.

A file is written under a temporary name, flushed to the disk, and renamed: a power cut leaves the
old file or the new one. The file before it stays beside it, with "previous" in its name, and is
read if the last one is damaged. Nothing is pickled. The header has a checksum and lists the trials
in the file, so that it can be removed when all of them are done.
"""

import json
import os
import random
import re
import socket
import struct
import time
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.errors import with_code
from orderone.torch_compat import sparse_parts
from orderone.training.model_structure import changed_structure, kind_of, resized_tensors
from orderone.training.outcome import read_evaluation

if TYPE_CHECKING:
    from orderone.training.loop import TrainingLoop

FORMAT = 2  # 2: an optimizer has state in groups and attributes
SUFFIX = ".safetensors"
PREVIOUS = ".previous"
DAMAGED = ".damaged"
Record: TypeAlias = dict[str, Any]  # JSON
Content: TypeAlias = tuple[dict[str, Tensor], Record]
_LENGTH = 8  # bytes that hold the length of the header
_OLD = 86400.0  # seconds after which a temporary file of another machine is nobody's


# --- files ----------------------------------------------------------------------------------------


def previous(path: Path) -> Path:
    """Return the name of the checkpoint before the one at `path`."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}{PREVIOUS}{SUFFIX}")


def save(path: Path, tensors: Mapping[str, Tensor], record: Record) -> None:
    """Write tensors and a record; `record["keys"]` are the keys of the trials in the file.

    Raise an OSError if the disk is full; then the files that are there stay as they are.
    """
    from safetensors.torch import save as to_bytes

    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        plain[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    text = json.dumps({"format": FORMAT, **record})
    content = to_bytes(plain, {"orderone": text, "checksum": _checksum(plain, text)})
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, previous(path))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        x = tensors[name].contiguous()
        if x.numel():
            total = zlib.crc32(x.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


def load(path: Path, remove_damaged: bool = True) -> Content | None:
    """Return the tensors and the record of the newest file that is whole; None if there is none.

    A file that is not is removed, with a warning, so that it is not tried again; without
    `remove_damaged` it gets another name, and stays if it is the only one.
    """
    candidates = [candidate for candidate in (path, previous(path)) if candidate.is_file()]
    for place, candidate in enumerate(candidates):
        content = _content(candidate)
        if content is not None:
            return content
        remaining = candidates[place + 1 :]
        if not remove_damaged and not remaining:
            return None
        if remaining:
            use = "the previous one is used"
        else:
            use = "the training starts again"
        text = f"the checkpoint {candidate} is damaged; {use}"
        warnings.warn(with_code(text, "checkpoint-damaged"), stacklevel=3)
        if remove_damaged:
            candidate.unlink(missing_ok=True)
        else:
            os.replace(candidate, candidate.with_name(candidate.name + DAMAGED))
    return None


def load_earlier(path: Path) -> Content | None:
    """Return what is in the checkpoint before the one at `path`; None if there is none, or damaged.

    Also None if there is none at `path`.
    """
    if header(path) is None:
        return None
    return _content(previous(path))


def _content(path: Path) -> Content | None:
    """Return what is in a file; None if it is not a checkpoint, or damaged."""
    from safetensors import SafetensorError, safe_open

    record = header(path)
    if record is None:
        return None
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    checksum = metadata.get("checksum")  # files of older versions have none
    if checksum is not None and checksum != _checksum(tensors, metadata["orderone"]):
        return None
    return tensors, record


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


def remove(path: Path) -> None:
    """Remove a checkpoint and the one before it."""
    path.unlink(missing_ok=True)
    previous(path).unlink(missing_ok=True)


def remove_temporary(folder: Path, name: str = "*") -> None:
    """Remove temporary files of writers that were killed; `name` is that of the checkpoint."""
    if not folder.is_dir():
        return
    for path in folder.glob(f"{name}.tmp" if name == "*" else f"{name}.*.tmp"):
        if not _has_writer(path):
            path.unlink(missing_ok=True)


def _has_writer(path: Path) -> bool:
    """Return whether the process that writes a temporary file may be alive."""
    found = re.fullmatch(r".*\.safetensors\.(?:(?P<host>.+)\.)?(?P<pid>\d+)\.tmp", path.name)
    if found is None:
        return False
    if found["host"] not in (None, socket.gethostname()):
        try:
            return time.time() - path.stat().st_mtime < _OLD
        except OSError:
            return False
    pid = int(found["pid"])
    if pid == os.getpid():
        return False  # this process writes one file at a time, and none now
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# --- the state of a training ----------------------------------------------------------------------


def model_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, shared ones once; of sparse ones, their dense parts."""
    tensors: dict[str, Tensor] = {}
    for name, x in [*module.named_parameters(), *module.named_buffers()]:
        if x.layout == torch.strided:
            tensors[name] = x
            continue
        for part, values in sparse_parts(x.detach()).items():
            tensors[f"{name}.{part}"] = values
    return tensors


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of all generators: torch on the CPU and a GPU, numpy, and Python."""
    states = {"cpu": torch.get_rng_state(), "numpy": _numpy_state(), "python": _python_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def named_random_states(tensors: Mapping[str, Tensor], suffix: str = "") -> dict[str, Tensor]:
    """Return the random states that were saved as random.cpu and the like, with a suffix."""
    states: dict[str, Tensor] = {}
    for kind in ("cpu", "cuda", "numpy", "python"):
        name = f"random.{kind}{suffix}"
        if name in tensors:
            states[kind] = tensors[name]
    return states


def restore_random(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    if "numpy" in states:  # files of older versions have none
        *keys, place, has_normal, normal = states["numpy"].tolist()
        state = ("MT19937", np.array(keys, np.uint32), place, has_normal, _number(normal))
        np.random.set_state(state)
    if "python" in states:
        *numbers, has_normal, normal = states["python"].tolist()
        random.setstate((3, tuple(numbers), _number(normal) if has_normal else None))


def _numpy_state() -> Tensor:
    _, keys, place, has_normal, normal = np.random.get_state(legacy=True)
    return torch.tensor([*map(int, keys), int(place), int(has_normal), _bits(float(normal))])


def _python_state() -> Tensor:
    _, numbers, normal = random.getstate()
    return torch.tensor([*numbers, int(normal is not None), _bits(normal or 0.0)])


def _bits(number: float) -> int:
    """Return the bits of a float as a whole number, which a tensor of whole numbers can hold."""
    return int(np.float64(number).view(np.int64))


def _number(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


def extra_states(module: nn.Module) -> dict[str, object]:
    """Return what modules return from `get_extra_state`, by the names of the modules."""
    states: dict[str, object] = {}
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            states[name] = part.get_extra_state()
    return states


def restore_extra(module: nn.Module, states: Mapping[str, object]) -> None:
    modules = dict(module.named_modules())
    for name, state in states.items():
        modules[name].set_extra_state(state)


def changed_tensor(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> str | None:
    """Return which tensor of the model differs in shape or kind from the saved one, if any."""
    here = model_tensors(module)
    there: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            there[name.removeprefix(prefix)] = value
    for name in here | there:
        a = there.get(name)
        b = here.get(name)
        if a is None or b is None or a.shape != b.shape:
            shapes = [None if x is None else tuple(x.shape) for x in (a, b)]
            return f"the shape of {name} is {shapes[0]} in the file and {shapes[1]} here"
        if kind_of(a) != kind_of(b):
            return f"{name} has {kind_of(a)} in the file and {kind_of(b)} here"
    return None


def progress(loop: "TrainingLoop") -> Record:
    """Return the numbers of a training, for a record."""
    numbers: Record = {
        "losses": list(loop.losses),
        "evaluation": list(loop.evaluation),
        "seconds": loop.seconds,
        "device": device_name(loop),
        "structure": changed_structure(loop.structure, loop.step.module),
        "resized": resized_tensors(loop.layouts, loop.step.module),
    }
    if loop.step.scale is not None:
        numbers["loss_scale"] = loop.step.scale.numbers()
    return numbers


def device_name(loop: "TrainingLoop") -> str:
    """Return the number of processes of a training and the kind of their devices."""
    return f"{loop.world.size} x {loop.world.device.type}"


def restore_progress(loop: "TrainingLoop", record: Record) -> None:
    loop.losses = list(record["losses"])
    loop.seconds = float(record["seconds"])
    loop.evaluation = read_evaluation(record["evaluation"])
    if loop.step.scale is not None:
        loop.step.scale.restore(record["loss_scale"])


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
        kind = "list" if isinstance(tree, list) else "tuple"
        return {kind: [pack(value, tensors, f"{name}.{i}") for i, value in enumerate(tree)]}
    return tree


def unpack(packed: object, tensors: Mapping[str, Tensor]) -> Any:
    """Return the tree that was passed to `pack`."""
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "dict" in packed:
        return {key: unpack(value, tensors) for key, value in packed["dict"]}
    if "tuple" in packed:
        return tuple(unpack(value, tensors) for value in packed["tuple"])
    return [unpack(value, tensors) for value in packed["list"]]
