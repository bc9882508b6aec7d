"""A kernel that sizes many tensors at once: norm, sum, largest absolute value, non-finite entries.

It reads every entry once. The reductions of torch take nine launches for each tensor, and on a GPU
a launch costs the host more than reading a small tensor. Triton is installed with torch for CUDA.

Each program of a grid (tensors, shares) adds up one share of one tensor, in double precision, so
that squares neither overflow nor underflow; a second kernel adds up the shares.
"""

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

BLOCK = 1024  # entries
ROUNDS = 16  # blocks in a share, unless there would be too many shares
MOST_SHARES = 1024


class Kind(NamedTuple):
    """A precision, with types of Triton."""

    stored: object  # in memory
    wide: object = tl.float32  # to compute with
    bits: object = tl.int32  # the same bits as a whole number
    size: int = 0x7FFFFFFF  # all bits but the sign
    infinity: int = 0x7F800000


KINDS = {
    torch.float16: Kind(tl.float16),
    torch.bfloat16: Kind(tl.bfloat16),
    torch.float32: Kind(tl.float32),
    torch.float64: Kind(tl.float64, tl.float64, tl.int64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
}


@triton.jit
@no_type_check  # Triton compiles it; Python never runs it
def _add_up(
    addresses,
    counts,
    partial,
    tensors,
    TYPE: tl.constexpr,
    WIDE: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    INFINITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up one share of one tensor.

    Absolute values are compared by their bits as integers, which have the same order; values that
    are not finite are the largest.
    """
    tensor = tl.program_id(0)
    share = tl.program_id(1)
    shares = tl.num_programs(1)
    entries = tl.load(addresses + tensor).to(tl.pointer_type(TYPE))
    count = tl.load(counts + tensor)
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), tl.float64)
    total = tl.zeros((BLOCK,), tl.float64)
    largest = tl.zeros((BLOCK,), BITS)
    first = share.to(tl.int64) * BLOCK
    step = shares.to(tl.int64) * BLOCK
    for start in range(first, count, step):
        left = tl.minimum(count - start, BLOCK).to(tl.int32)
        x = tl.load(entries + start + lane, mask=lane < left, other=0.0).to(WIDE)
        largest = tl.maximum(largest, x.to(BITS, bitcast=True) & SIZE)
        wide = x.to(tl.float64)
        squares += wide * wide
        total += wide
    highest = tl.max(largest, 0)
    bad = tl.full((), 0.0, tl.float64)
    if highest >= INFINITY:
        bads = tl.zeros((BLOCK,), tl.int32)
        for start in range(first, count, step):
            left = tl.minimum(count - start, BLOCK).to(tl.int32)
            x = tl.load(entries + start + lane, mask=lane < left, other=0.0).to(WIDE)
            bads += tl.where((x.to(BITS, bitcast=True) & SIZE) >= INFINITY, 1, 0)
        bad = tl.sum(bads, 0).to(tl.float64)
    place = partial + tensor * shares + share
    step = tensors * shares
    tl.store(place, tl.sum(squares, 0))
    tl.store(place + step, tl.sum(total, 0))
    tl.store(place + 2 * step, highest.to(WIDE, bitcast=True).to(tl.float64))
    tl.store(place + 3 * step, bad)


@triton.jit
@no_type_check
def _add_shares(partial, out, tensors, shares, MOST: tl.constexpr):
    tensor = tl.program_id(0)
    share = tl.arange(0, MOST)
    place = partial + tensor * shares + share
    step = tensors * shares
    there = share < shares
    largest = tl.load(place + 2 * step, mask=there, other=0.0)
    nans = tl.sum(tl.where(largest != largest, 1, 0), 0)
    highest = tl.max(tl.where(largest != largest, 0.0, largest), 0)
    tl.store(out + tensor, tl.sqrt(tl.sum(tl.load(place, mask=there, other=0.0), 0)))
    tl.store(out + tensors + tensor, tl.sum(tl.load(place + step, mask=there, other=0.0), 0))
    tl.store(out + 2 * tensors + tensor, tl.where(nans > 0, float("nan"), highest))
    tl.store(
        out + 3 * tensors + tensor, tl.sum(tl.load(place + 3 * step, mask=there, other=0.0), 0)
    )


def sizes(tensors: Sequence[Tensor]) -> Tensor:
    """Return norm, sum, largest absolute value, number of non-finite entries: (4, tensors), double.

    All tensors must have one precision and be dense in memory.
    """
    first = tensors[0]
    counts = [x.numel() for x in tensors]
    shares = min(MOST_SHARES, triton.next_power_of_2(triton.cdiv(max(counts), ROUNDS * BLOCK)))
    described = torch.tensor([[x.data_ptr() for x in tensors], counts], dtype=torch.int64)
    addresses = described.to(first.device, non_blocking=True)
    partial = torch.empty((4, len(tensors), shares), dtype=torch.float64, device=first.device)
    out = torch.empty((4, len(tensors)), dtype=torch.float64, device=first.device)
    add_up = _add_up[len(tensors), shares]  # pyright: ignore[reportIndexIssue]
    add_shares = _add_shares[len(tensors),]  # pyright: ignore[reportIndexIssue]
    with torch.cuda.device_of(first):
        add_up(addresses[0], addresses[1], partial, len(tensors), *KINDS[first.dtype], BLOCK)
        add_shares(partial, out, len(tensors), shares, MOST_SHARES)
    return out
