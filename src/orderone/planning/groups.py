"""The groups of S2 (patch, WE, PE, QKVU, W, X, head) among the tensors of a model."""

from orderone.planning.growth import Tensor

_ATTENTION = ("attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv")


def group_of(t: Tensor, role: str) -> str:
    """The word of S2 for a tensor: patch, WE, PE, QKVU, W, X, head or head_bias; elsewhere, its role."""
    name = t.item.name.lower()
    if role == "embedding":
        lookup = any(layout.kind == "lookup" for layout in t.layouts)
        positional = "pos" in name or "wpe" in name or not t.layouts
        return "PE" if positional else "WE" if lookup else "patch"
    if role == "hidden":
        if any(word in name for word in _ATTENTION):
            return "QKVU"
        into, out = fans(t)
        return "W" if out > into else "X" if out < into else "QKVU"
    return {"readout": "head"}.get(role, role)


def fans(t: Tensor) -> tuple[int, int]:
    layout = next((layout for layout in t.layouts if layout.kind == "matrix"), None)
    if layout is None or any(other.kind == "lookup" for other in t.layouts):
        return 1, t.item.shape[-1] if t.item.shape else 1
    sizes = [1, 1]
    for axis, size in enumerate(t.item.shape):
        sizes[axis in layout.fan_out] *= size  # kernels add to what is summed over
    return sizes[0], sizes[1]
