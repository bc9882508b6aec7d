"""Roles of a model that stands alone: without a base, which sizes are widths must come from the
model's own structure.

A width is what one matrix gives and another takes. The first matrix of a model without lookups
reads the data, where a table of positions is no lookup; the last matrix is the output if it is
called a head. A matrix whose fan-out nobody takes is the output too, unless it packs a few widths
side by side (queries, keys and values; gate and up).
"""

from collections.abc import Iterable, Sequence

from orderone.observe.layouts import Layout
from orderone.planning.growth import Tensor
from orderone.planning.names import is_head, is_positional
from orderone.planning.names import packed as number_packed

PACKED = 8  # at most so many widths side by side


def structural_roles(tensors: Sequence[Tensor], outputs: Iterable[str] = ()) -> dict[str, str]:
    """embedding, hidden, readout or vector for every tensor whose layout is known; `outputs` names
    known output modules."""
    known = frozenset(outputs)
    matrices = [(t, layout) for t in tensors if (layout := _only(t, "matrix"))]
    lookups = [(t, layout) for t in tensors if (layout := _only(t, "lookup"))]
    consumed = {_size(t, layout.fan_in) for t, layout in matrices}
    produced = {_size(t, layout.fan_out) for t, layout in (*matrices, *lookups)} | {
        t.part for t in tensors if t.part
    }
    widths = consumed & produced
    result = {t.item.name: "vector" for t in tensors}
    result |= {t.item.name: "embedding" for t, _ in lookups}
    reads_words = any(not is_positional(t.item.name) for t, _ in lookups)
    for number, (t, layout) in enumerate(matrices):
        first = number == 0 and not reads_words
        last = number == len(matrices) - 1
        output = any(place.module in known for place in t.item.places) or (
            last and is_head(t.item.name)
        )
        result[t.item.name] = _matrix_role(t, layout, widths, first, last, output)
    return result


def _matrix_role(
    t: Tensor, layout: Layout, widths: set[int], first: bool, last: bool, output: bool
) -> str:
    into = _size(t, layout.fan_in)
    out = _size(t, layout.fan_out)
    if output or (last and out not in widths):
        return "readout"
    if first or into not in widths:
        return "vector" if into == 1 else "embedding"
    packed = any(out % width == 0 and out // width <= PACKED for width in widths)
    shared = any(
        width % out == 0 and width // out <= PACKED for width in widths
    )  # keys and values of several heads
    several = (
        t.part is not None or number_packed(t.item.name) > 1
    )  # with fewer keys than queries, no multiple of a width
    if out in widths or packed or shared or several:
        return "hidden"
    return "readout"


def _only(t: Tensor, kind: str) -> Layout | None:
    """The layout of this kind; a tied tensor is the lookup it is."""
    kinds = {layout.kind: layout for layout in t.layouts}
    if kind == "matrix" and "lookup" in kinds:
        return None
    return kinds.get(kind)


def _size(t: Tensor, axes: Iterable[int]) -> int:
    size = 1
    for axis in axes:
        size *= t.item.shape[axis]
    return size
