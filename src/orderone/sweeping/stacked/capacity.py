"""Number of members that fit in one program."""

from collections.abc import Callable

import torch

ON_CPU = 16  # more members are not faster: the cores are busy, and the caches full
# share of the free memory that members may use; the rest is for fragmentation and CUDA graphs
USABLE = 0.85


def capacity(device: torch.device, wanted: int, one_step: Callable[[], int]) -> int:
    """Return the number of members, at most `wanted`.

    On a GPU it is estimated from the memory of one step of one member. `one_step` trains a single
    member for a step and returns the bytes of its state, which a CUDA graph needs a second time.
    """
    if device.type != "cuda":
        return min(wanted, ON_CPU)
    if wanted == 1:
        return 1
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    state = one_step()
    each = torch.cuda.max_memory_allocated(device) - before + state
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(wanted, int(USABLE * free / each)))
