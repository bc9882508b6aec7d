"""Steps of layers for pairs of points, once for each pair, in blocks that fit the cache.

Layers that treat every pair separately need only the two numbers of the pair. So the pairs are
processed in strips that fit into the cache, and a strip goes through all layers before the next one
is read:

    for a strip:  (gap, tangent) -> step -> step -> ... -> both triangles of the new kernel

Memory contains the old kernel and the new one, for any number of layers. The numbers of the points
a and b that a layer needs are computed for all points beforehand. If all points agree, as after a
normalization or at the fixed point of a length map, one number is stored for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device

from orderone.core.inputs import Array
from orderone.theory.kernels.kernel import Kernel, Points, pinned
from orderone.theory.kernels.strips import Strip, strips

CPU_BYTES = 2**17  # size of one array over a strip; a step needs a few of them in the cache
GPU_BYTES = 2**26  # the same on a GPU, which needs larger blocks
SAME = 4  # units of the last place: numbers that differ by less count as equal


class Pairs(NamedTuple):
    """Two numbers of each pair in a strip."""

    gap: Array  # (rows, columns) of a strip
    tangent: Array  # (rows, columns)


Step: TypeAlias = Callable[[Pairs, Strip], Pairs]


@dataclass(frozen=True, eq=False)
class PerPoint:
    """Numbers for each point, or one set of numbers for all points."""

    vectors: tuple[Array, ...]  # each (points,), or (1, 1) for all
    common: bool

    def sides(self, strip: Strip) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return the numbers of both points of each pair, (rows, 1) and (1, columns).

        If all points agree, both are the same tuple.
        """
        if self.common:
            return self.vectors, self.vectors
        left = tuple(vector[strip.rows, None] for vector in self.vectors)
        right = tuple(vector[None, strip.columns] for vector in self.vectors)
        return left, right


def per_point(dtype: object, *vectors: Array) -> PerPoint:
    """Return `vectors` in the precision of the pairs, as single numbers if none of them varies."""
    if not vectors:
        return PerPoint((), common=True)
    common = all(_constant(vector, dtype) for vector in vectors)
    converted = []
    for vector in vectors:
        short = vector[:1, None] if common else vector
        converted.append(array_namespace(short).astype(short, dtype))
    return PerPoint(tuple(converted), common)


def _constant(vector: Array, dtype: object) -> bool:
    xp = array_namespace(vector)
    high = float(xp.max(vector))
    low = float(xp.min(vector))
    return high - low <= SAME * float(xp.finfo(dtype).eps) * max(high, -low)


@np.errstate(all="ignore")  # overflow shows as infinity in the result
def through(kernel: Kernel, steps: Sequence[Step], points: Points) -> Kernel:
    """Return the kernel after all `steps`, with the diagonals of `points`."""
    xp = array_namespace(kernel.gap)
    gap = xp.empty_like(kernel.gap)
    tangent = xp.empty_like(kernel.tangent)
    if str(device(gap)) == "cpu":
        strip_bytes = CPU_BYTES
    else:
        strip_bytes = GPU_BYTES
    for strip in strips(gap.shape[0], strip_bytes // gap.dtype.itemsize):
        pairs = Pairs(strip.read(kernel.gap), strip.read(kernel.tangent))
        for step in steps:
            pairs = step(pairs, strip)
        strip.write(gap, xp.clip(pairs.gap, 0.0, 2.0))  # rounding may exceed the interval
        strip.write(tangent, pairs.tangent)
    ratio = points.ntk / xp.where(points.variance > 0, points.variance, 1.0)
    gap = pinned(gap, xp.zeros_like(ratio))
    return Kernel(points, gap, pinned(tangent, ratio), kernel.tokens, kernel.space)
