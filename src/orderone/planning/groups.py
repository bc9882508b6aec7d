"""The groups of S2 (patch, WE, PE, QKVU, W, X, head) among the tensors of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mode

from orderone.observe.inventory import Place
from orderone.planning import names
from orderone.planning.growth import Tensor


def groups_of(tensors: Sequence[Tensor], roles: Mapping[str, str]) -> dict[str, str]:
    """The group of every tensor; a vector beside a readout is its bias, head_bias."""
    heads = {place.module for t in tensors for place in readout_places(t, roles[t.item.name])}
    width = width_of(tensors, roles)
    found = {t.item.name: group_of(t, roles[t.item.name], width) for t in tensors}
    beside = [t.item.name for t in tensors if any(place.module in heads for place in t.item.places)]
    return found | {name: "head_bias" for name in beside if roles[name] == "vector"}


def readout_places(t: Tensor, role: str) -> list[Place]:
    """Where the tensor is the readout: everywhere, or as a tied one in modules that multiply with
    it."""
    multiplies = [
        place for place in t.item.places if place.layout and place.layout.kind == "matrix"
    ]
    if role == "readout" or len({layout.kind for layout in t.layouts}) > 1:
        return multiplies
    return []


def width_of(tensors: Sequence[Tensor], roles: Mapping[str, str]) -> int | None:
    """The width of the residual stream: the commonest size of hidden matrices."""
    sizes = [size for t in tensors if roles[t.item.name] == "hidden" for size in fans(t)]
    return mode(sizes) if sizes else None


@dataclass(frozen=True)
class Streams:
    """Widths that tensors write to: that of the residual stream, and those of tables that are
    narrower (ALBERT, OPT)."""

    residual: int | None
    tables: frozenset[int]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], roles: Mapping[str, str]) -> "Streams":
        lookups = [t for t in tensors if any(layout.kind == "lookup" for layout in t.layouts)]
        return cls(width_of(tensors, roles), frozenset(fans(t)[1] for t in lookups))

    def width(self, out: int) -> int | None:
        """The n of a tensor with this fan-out, in the powers of S2: its stream's, and elsewhere the
        residual stream's."""
        return out if out in self.tables else self.residual


def group_of(t: Tensor, role: str, width: int | None) -> str:
    """The word of S2 for a tensor: patch, WE, PE, QKVU, W, X or head; elsewhere, its role."""
    name = t.item.name
    if role == "embedding":
        lookup = any(layout.kind == "lookup" for layout in t.layouts)
        if names.is_positional(name) or not t.layouts:
            return "PE"
        if lookup:
            return "WE"
        return "patch"
    if role == "hidden":
        if names.is_attention(name):
            return "QKVU"
        into, out = fans(t)
        if into == out:
            return "QKVU"
        if into == width or (out > into and out != width):
            return "W"
        return "X"
    return {"readout": "head"}.get(role, role)


def fans(t: Tensor) -> tuple[int, int]:
    """What is summed over, and what comes out; of matrices side by side, of one of them."""
    layout = next((layout for layout in t.layouts if layout.kind == "matrix"), None)
    if layout is None or any(other.kind == "lookup" for other in t.layouts):
        return 1, t.part or (t.item.shape[-1] if t.item.shape else 1)
    sizes = [1, 1]
    for axis, size in enumerate(t.item.shape):
        sizes[axis in layout.fan_out] *= size  # kernels add to what is summed over
    into, out = sizes
    return into, t.part or out
