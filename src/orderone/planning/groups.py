"""The groups of S2 (patch, WE, PE, QKVU, W, X, head) among the tensors of a model."""

from collections.abc import Mapping, Sequence

from orderone.planning import names
from orderone.planning.growth import Tensor
from orderone.planning.inventory import Place


def groups_of(tensors: Sequence[Tensor], roles: Mapping[str, str]) -> dict[str, str]:
    """The group of every tensor; a vector beside a readout is its bias, head_bias."""
    heads = {place.module for t in tensors for place in readout_places(t, roles[t.item.name])}
    found = {t.item.name: group_of(t, roles[t.item.name]) for t in tensors}
    beside = [t.item.name for t in tensors if any(place.module in heads for place in t.item.places)]
    return found | {name: "head_bias" for name in beside if roles[name] == "vector"}


def readout_places(t: Tensor, role: str) -> list[Place]:
    """Where the tensor is the readout: everywhere, or as a tied one in modules that multiply with it."""
    multiplies = [place for place in t.item.places if place.layout and place.layout.kind == "matrix"]
    return multiplies if role == "readout" or len({layout.kind for layout in t.layouts}) > 1 else []


def group_of(t: Tensor, role: str) -> str:
    """The word of S2 for a tensor: patch, WE, PE, QKVU, W, X or head; elsewhere, its role."""
    name = t.item.name
    if role == "embedding":
        lookup = any(layout.kind == "lookup" for layout in t.layouts)
        return "PE" if names.is_positional(name) or not t.layouts else "WE" if lookup else "patch"
    if role == "hidden":
        if names.is_attention(name):
            return "QKVU"
        into, out = fans(t)
        return "W" if out > into else "X" if out < into else "QKVU"
    return {"readout": "head"}.get(role, role)


def fans(t: Tensor) -> tuple[int, int]:
    """What is summed over, and what comes out. Queries, keys and values packed in one tensor are matrices side by side."""
    layout = next((layout for layout in t.layouts if layout.kind == "matrix"), None)
    if layout is None or any(other.kind == "lookup" for other in t.layouts):
        return 1, t.item.shape[-1] if t.item.shape else 1
    sizes = [1, 1]
    for axis, size in enumerate(t.item.shape):
        sizes[axis in layout.fan_out] *= size  # kernels add to what is summed over
    into, out = sizes
    number = names.packed(t.item.name)
    return into, out // number if out == number * into else out
