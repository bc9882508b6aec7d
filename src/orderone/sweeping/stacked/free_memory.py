"""Bytes that this process can still use in main memory, and bytes that a training step needs."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from orderone.torch_compat import storage_id

SYSTEM = Path("/proc/meminfo")
OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")  # limits of containers


def free_memory() -> int | None:
    """Return the free bytes of main memory; None where the system does not tell."""
    known = [size for size in (_free_in_system(), _free_in_group()) if size is not None]
    return min(known, default=None)


def _free_in_system() -> int | None:
    """Return the bytes that Linux can give to programs without swapping."""
    for line in _lines(SYSTEM):
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _free_in_group() -> int | None:
    """Return the bytes below the lowest limit of the control groups of this process."""
    paths = [line.removeprefix("0::") for line in _lines(OWN_GROUP) if line.startswith("0::")]
    if not paths:
        return None
    folder = GROUPS / paths[0].strip("/")
    free: list[int] = []
    for group in (folder, *folder.parents):
        limit = "".join(_lines(group / "memory.max"))
        used = "".join(_lines(group / "memory.current"))
        if limit.isdigit() and used.isdigit():
            free.append(max(0, int(limit) - int(used) + _cached_files(group)))
        if group == GROUPS:
            break
    return min(free, default=None)


def _cached_files(group: Path) -> int:
    """Return the bytes of files in memory, which the system drops when memory is needed."""
    for line in _lines(group / "memory.stat"):
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def bytes_for_gradients(step: Callable[[], object]) -> int:
    """Run a training step, and return the bytes that its forward pass keeps for the backward pass.

    Tensors that exist before the step, such as weights, count if the backward pass reads them.
    """
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage_id(storage)] = storage.nbytes()
        return x.detach()  # the tensor itself would refer to the pass that refers to it

    with saved_tensors_hooks(keep, lambda x: x):
        step()
    return sum(kept.values())
