"""The work between pairs of points, done once for each pair, and in the cache.

Layers that treat every pair by itself need no more of the matrices than the pair's own two numbers.
So the pairs are taken in strips that fit into the cache, and a strip goes through all layers before
the next one is touched:

    for a strip:  (gap, tangent) -> step -> step -> ... -> both triangles of the new kernel

Memory holds the old kernel and the new one, however many layers there are. What a layer needs to
know of the points a and b was found for all points beforehand; where they all agree, as they do
behind a normalization or at the fixed point of a length map, one number stands for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device

from orderone.core.inputs import Array
from orderone.theory.kernels.kernel import Kernel, Points, pinned
from orderone.theory.kernels.strips import Strip, strips

CACHE = (
    2**17
)  # bytes, of one number for each pair of a strip; a step holds a handful of such arrays
ELSEWHERE = 2**26  # a GPU wants much to do at once
SAME = 4  # in units of the last place: variances that differ by less are taken as one


class Pairs(NamedTuple):
    gap: Array  # (rows, columns) of a strip
    tangent: Array  # (rows, columns)


Step: TypeAlias = Callable[[Pairs, Strip], Pairs]


@dataclass(frozen=True, eq=False)
class PerPoint:
    """Some numbers for each point, or for all points alike, as the two sides of a pair see them."""

    vectors: tuple[Array, ...]  # each (points,), or (1, 1) for all
    common: bool

    def sides(self, strip: Strip) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Of shapes (rows, 1) and (1, columns); or one tuple twice, if all points are alike."""
        if self.common:
            return self.vectors, self.vectors
        left = tuple(vector[strip.rows, None] for vector in self.vectors)
        return left, tuple(vector[None, strip.columns] for vector in self.vectors)


def per_point(dtype: object, *vectors: Array) -> PerPoint:
    """`vectors` in the precision of the pairs, and as single numbers if none of them varies."""
    if not vectors:
        return PerPoint((), common=True)
    common = all(_constant(vector, dtype) for vector in vectors)
    each = tuple(vector[:1, None] if common else vector for vector in vectors)
    return PerPoint(tuple(array_namespace(vector).astype(vector, dtype) for vector in each), common)


def _constant(vector: Array, dtype: object) -> bool:
    xp = array_namespace(vector)
    high = float(xp.max(vector))
    low = float(xp.min(vector))
    return high - low <= SAME * float(xp.finfo(dtype).eps) * max(high, -low)


@np.errstate(all="ignore")  # what overflows becomes infinite, and says so by that
def through(kernel: Kernel, steps: Sequence[Step], points: Points) -> Kernel:
    """The kernel behind all `steps`, whose diagonals are those of `points`."""
    xp = array_namespace(kernel.gap)
    gap = xp.empty_like(kernel.gap)
    tangent = xp.empty_like(kernel.tangent)
    held = CACHE if str(device(gap)) == "cpu" else ELSEWHERE
    for strip in strips(gap.shape[0], held // gap.dtype.itemsize):
        pairs = Pairs(strip.read(kernel.gap), strip.read(kernel.tangent))
        for step in steps:
            pairs = step(pairs, strip)
        strip.write(gap, xp.clip(pairs.gap, 0.0, 2.0))  # rounding may have left the interval
        strip.write(tangent, pairs.tangent)
    ratio = points.ntk / xp.where(points.variance > 0, points.variance, 1.0)
    return Kernel(points, pinned(gap, xp.zeros_like(ratio)), pinned(tangent, ratio), kernel.tokens)
