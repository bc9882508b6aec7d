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
# Share of the bound that is planned for. Libraries allocate buffers on first use, and freed blocks
# stay with the allocator: processes grow by up to 1.8 times the sum of the tensors.
USABLE = 0.55
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


def _tiles_of_products(
    size: Size, examples: int, outputs: int, memory: int
) -> tuple[int, int, int]:
    """Return examples of a tile, outputs of a chunk, and the bytes that they need.

    For each output of a chunk there is a gradient, and a copy of all activations.
    """
    each = 4 * (size.graph + size.taps)
    tile = max(1, min(examples, memory // max(1, each)))
    gradients = 4 * size.parameters * 8
    chunk = max(1, min(outputs, memory // max(1, gradients + tile * each)))
    return tile, chunk, chunk * (gradients + tile * each)


def costs(
    size: Size,
    examples: tuple[int, int],
    outputs: int,
    trace: bool,
    groups: int,
    memory: int,
    method: Name,
    symmetric: bool = False,
) -> Costs:
    """Return the cheaper method, and the largest tiles that fit into `memory` bytes.

    `symmetric` says that the examples of both sides are the same.
    """
    method = one_of(method, METHODS, "method")
    memory = int(USABLE * memory)
    multiplied: frozenset[str] = frozenset()
    while True:  # tiles depend on the form of Jacobians, and the form on tiles
        tile, chunk, used = _tiles(size, multiplied, examples, outputs, trace, memory, symmetric)
        tiles = min(tile, examples[0]), min(tile, examples[1])
        chosen = _multiplied(size, trace, tiles, chunk)
        if chosen <= multiplied:
            break
        multiplied |= chosen
    visits = -(-examples[0] // tile)
    passes = examples[0]
    if visits > 1 or not symmetric:
        passes += visits * examples[1]
    jacobian = (1 + BACKWARD * outputs) * (passes * size.flops + PASS * -(-passes // tile))
    pairs = visits * -(-examples[1] // tile)
    for uses in size.jacobians.values():
        jacobian += pairs * min(contraction_flops(uses, uses, trace, tiles, outputs))
    directions = groups * examples[1] * outputs
    products = directions * size.flops * (GRADIENT + DIRECTIONAL * examples[0])
    products += groups * examples[1] * PASS * (GRADIENT + DIRECTIONAL)
    if method == "auto":
        method = "jacobian" if jacobian <= products else "products"
    if method == "products":
        tile, chunk, used = _tiles_of_products(size, examples[0], outputs, memory)
    used = int(used / USABLE)
    return Costs(method, tile, chunk, used, jacobian, products, multiplied)


def _multiplied(size: Size, trace: bool, tiles: tuple[int, int], chunk: int) -> frozenset[str]:
    """Return the parameters for which products of whole Jacobians are cheaper."""
    names: set[str] = set()
    for name, uses in size.jacobians.items():
        explicit, factored = contraction_flops(uses, uses, trace, tiles, chunk)
        if explicit <= factored:
            names.add(name)
    return frozenset(names)


def _tiles(
    size: Size,
    multiplied: frozenset[str],
    examples: tuple[int, int],
    outputs: int,
    trace: bool,
    memory: int,
    symmetric: bool,
) -> tuple[int, int, int]:
    """Return examples of a tile, outputs of a chunk, and bytes.

    A trace pairs each chunk with itself only, so that small chunks cost nothing, and tiles should
    be large. Otherwise each chunk meets all others, and tiles need only be efficient.
    """
    most = max(examples)
    scratch = max((size.explicit[name] for name in multiplied), default=0)
    fixed = size.graph + size.taps + 2 * (size.others + scratch)
    kept = 0  # of one output
    for name in size.factored:
        kept += size.explicit[name] if name in multiplied else size.factored[name]
    if symmetric and trace:  # one tile of all examples
        chunk = max(1, min(outputs, (memory // most - fixed) // max(1, kept)))
        need = fixed + chunk * kept
        if most * need <= memory:
            return most, chunk, most * need
    enough = most if trace else min(ENOUGH, most)
    chunk = outputs
    while chunk > 1 and memory // (2 * (fixed + chunk * kept)) < enough:
        chunk = -(-chunk // 2)
    need = max(1, 2 * (fixed + chunk * kept))  # two tiles exist at a time
    if need > memory:
        raise InputError(
            f"memory: one example needs about {need / USABLE / 2**20:.0f} MiB of working memory,"
            f" more than the bound of {memory / USABLE / 2**20:.0f} MiB; pass a larger memory=",
            argument="memory",
        )
    tile = min(most, memory // need)
    tile = -(-most // -(-most // tile))  # the same number of tiles, of equal size
    return tile, chunk, tile * need
