"""Choice of a method and of tiles, from counted operations and bytes.

    Jacobians    forward + O backward passes for each example of a tile, then contractions
    products     Theta v = J_1 (J_2^T v): for each output of each column one gradient, and one
                 derivative along it for all rows; no contraction

A backward pass to activations takes about as many operations as a forward pass. A gradient, and a
derivative along a direction, take three times as many. The first method is cheaper for few outputs,
the second if there are more outputs than positions at which a weight is used.
"""

from dataclasses import dataclass

import torch

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name
from orderone.measure.kernels.factors import contraction_flops
from orderone.measure.kernels.jacobians import Size

CPU_BYTES = 2**29  # default bound of working memory
GPU_SHARE = 0.4  # of the memory that is free
ENOUGH = 16  # examples in a tile for which kernels of torch are efficient
METHODS = ("auto", "jacobian", "products")
PASS = 1e7  # operations that the start of one pass is worth
BACKWARD = 1
GRADIENT = 3  # forward pass included
DIRECTIONAL = 3


@dataclass(frozen=True)
class Costs:
    """Method and tiles, with the operations of both methods."""

    method: str  # jacobian or products
    tile: int  # examples in a tile
    chunk: int  # outputs that are differentiated together
    bytes: int  # working memory beside the result
    jacobian_flops: float
    products_flops: float
    explicit: frozenset[str]  # parameters whose Jacobians are multiplied out


def working_memory(memory: Count | None, device: torch.device) -> int:
    """Return the bound of working memory in bytes."""
    if memory is not None:
        return count(memory, "memory")
    if device.type == "cuda":
        return int(GPU_SHARE * torch.cuda.mem_get_info(device)[0])
    return CPU_BYTES


def costs(
    size: Size,
    examples: tuple[int, int],
    outputs: int,
    trace: bool,
    groups: int,
    memory: int,
    method: Name,
) -> Costs:
    """Return the cheaper method, and the largest tiles that fit into `memory` bytes."""
    method = one_of(method, METHODS, "method")
    tile, chunk, used = _tiles(size, max(examples), outputs, memory)
    visits = -(-examples[0] // tile)
    passes = examples[0] + (
        0 if visits == 1 and examples[0] == examples[1] else visits * examples[1]
    )
    jacobian = (1 + BACKWARD * outputs) * (passes * size.flops + PASS * -(-passes // tile))
    pairs = -(-examples[0] // tile) * -(-examples[1] // tile)
    tiles = min(tile, examples[0]), min(tile, examples[1])
    multiplied: set[str] = set()
    for name, uses in size.jacobians.items():
        explicit, factored = contraction_flops(uses, uses, trace, tiles, chunk)
        if explicit <= factored:
            multiplied.add(name)
        jacobian += pairs * min(contraction_flops(uses, uses, trace, tiles, outputs))
    directions = groups * examples[1] * outputs
    products = directions * size.flops * (GRADIENT + DIRECTIONAL * examples[0])
    products += groups * examples[1] * PASS * (GRADIENT + DIRECTIONAL)
    if method == "auto":
        method = "jacobian" if jacobian <= products else "products"
    if method == "products":
        # a gradient and a copy of all activations for each output of a chunk
        each = 4 * (size.graph + size.taps)
        tile = max(1, min(examples[0], memory // max(1, each)))
        gradients = 4 * size.parameters * 8
        chunk = max(1, min(outputs, memory // max(1, gradients + tile * each)))
        used = chunk * (gradients + tile * each)
    return Costs(method, tile, chunk, used, jacobian, products, frozenset(multiplied))


def _tiles(size: Size, examples: int, outputs: int, memory: int) -> tuple[int, int, int]:
    """Return examples of a tile, outputs of a chunk, and bytes; two tiles exist at a time."""
    chunk = outputs
    while chunk > 1 and memory // _bytes(size, chunk) < min(ENOUGH, examples):
        chunk = -(-chunk // 2)
    tile = max(1, min(examples, memory // _bytes(size, chunk)))
    if _bytes(size, chunk) > memory:
        need = _bytes(size, chunk)
        raise InputError(
            f"memory: one example needs about {need / 2**20:.0f} MiB of working memory, more than"
            f" the bound of {memory / 2**20:.0f} MiB; pass a larger memory=",
            argument="memory",
        )
    return tile, chunk, tile * _bytes(size, chunk)


def _bytes(size: Size, chunk: int) -> int:
    """Return the working memory of one example of both tiles."""
    each = size.graph + 2 * (size.taps + size.others) + chunk * size.kept + 2 * size.largest
    return max(1, 2 * each)
