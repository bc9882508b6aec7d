"""Number of members that fit in one program."""

from collections.abc import Callable, Sequence

import torch

from orderone.sweeping.stacked.free_memory import bytes_for_gradients, free_memory

ON_CPU = 16  # more members are not faster: the cores are busy, and the caches full
# share of the free memory that members may use; the rest is for fragmentation and CUDA graphs
USABLE = 0.85


def fastest(device: torch.device, wanted: int) -> int:
    """Return the number of members to stack if memory does not matter, at most `wanted`."""
    if device.type == "cuda":
        return wanted
    return min(wanted, ON_CPU)


def capacity(
    device: torch.device,
    wanted: int,
    one_step: Callable[[], int],
    upper_bounds: Sequence[Callable[[], int]] = (),
    processes: int = 1,
) -> int:
    """Return the number of members, at most `wanted`.

    It is estimated from the memory of one step of one member. `one_step` trains a single member for
    a step and returns the bytes of its state: a CUDA graph needs them a second time, and on a CPU
    gradients need no more. On a CPU, the step is made only if none of `upper_bounds`, bytes that a
    member does not exceed, the cheapest to compute first, says that memory suffices. So many
    `processes` share the main memory.
    """
    most = fastest(device, wanted)
    if most == 1:
        return 1
    if device.type == "cuda":
        each, free = _on_gpu(device, one_step)
    else:
        free = free_memory() if device.type == "cpu" else None
        if free is not None:
            free //= processes
        if free is None or any(most * bound() <= USABLE * free for bound in upper_bounds):
            return most
        each = _on_cpu(one_step)
    return max(1, min(most, int(USABLE * free / max(each, 1))))


def _on_gpu(device: torch.device, one_step: Callable[[], int]) -> tuple[int, int]:
    """Return the bytes of a member, and the free ones."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    state = one_step()
    each = torch.cuda.max_memory_allocated(device) - before + state
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return each, free


def _on_cpu(one_step: Callable[[], int]) -> int:
    """Return the bytes of a member: its state, as much for gradients, and its activations."""
    states: list[int] = []
    activations = bytes_for_gradients(lambda: states.append(one_step()))
    return 2 * states[0] + activations
