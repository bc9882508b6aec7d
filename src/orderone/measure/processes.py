"""Rows of a probe in several processes that train one model.

Every process records its part: its rows of a batch, its shards of the tensors (FSDP2, tensor
parallel). Sums over the parts are sums over the whole.
"""

from collections.abc import Sequence

import torch.distributed as dist

from orderone.observe.moments import Moments
from orderone.observe.quantities import Quantity
from orderone.observe.step_recorder import Row


def of_all_processes(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of all processes together; all of them must call this."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return list(rows)
    everywhere: list[list[tuple[int, str, str, tuple[float, ...]]]] = [[]] * dist.get_world_size()
    plain = [(step, name, kind.value, tuple(size)) for step, name, kind, size in rows]
    dist.all_gather_object(everywhere, plain)
    totals: dict[tuple[int, str, Quantity], Moments] = {}
    for part in everywhere:
        for step, name, kind, numbers in part:
            key = (step, name, Quantity(kind))
            size = Moments(int(numbers[0]), *numbers[1:])
            totals[key] = totals[key] + size if key in totals else size
    return [(*key, size) for key, size in totals.items()]
