"""Which axes of a tensor are summed over: what the module that owns it knows, as a registry that
users can extend.

    matrix    y_out = sum_in W[out, in] x[in]     Linear, ConvNd (kernel axes belong to neither),
                                                  attention and RNN weights
    lookup    y_out = W[token, out]               Embedding: the token axis picks a row, nothing is
                                                  summed
    vector    added or multiplied entry by entry  biases, gains

Shapes cannot tell a Linear from Hugging Face's transposed Conv1D, nor a readout from an embedding.
The owner can.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

from torch import nn


@dataclass(frozen=True)
class Layout:
    """`fan_in` and `fan_out` are axes; a lookup's fan_in is the axis that picks. Kernel and expert
    axes are neither."""

    kind: str
    fan_in: tuple[int, ...] = ()
    fan_out: tuple[int, ...] = ()


def matrix(into: int, out: int) -> Layout:
    return Layout("matrix", (into,), (out,))


def lookup(pick: int = 0, out: int = 1) -> Layout:
    return Layout("lookup", (pick,), (out,))


VECTOR = Layout("vector")
_REGISTRY: dict[str, dict[str, Layout]] = {}


def register(module: type[nn.Module] | str, **layouts: Layout) -> None:
    """Tell how a module type uses its tensors: `register(MyLinear, weight=matrix(into=0, out=1))`.

    The type may be given by its full name, which needs no import. Names of tensors may hold
    wildcards, with ** and a dict. Subclasses inherit; what you register last wins.
    """
    if not isinstance(module, str):
        module = _full_name(module)
    _REGISTRY.setdefault(module, {}).update(layouts)


def layout_of(module: nn.Module, attribute: str, dimensions: int) -> Layout | None:
    """The layout of `module.attribute`; None if nobody has said and the tensor is more than a
    vector."""
    if (
        getattr(module, "transposed", False)
        and getattr(module, "groups", 1) == getattr(module, "in_channels", 0) > 1
    ):
        return VECTOR  # one filter per channel
    for pattern, layout in _registered(type(module)):
        if fnmatch(attribute, pattern):
            return layout
    if dimensions <= 1:
        return VECTOR
    return None


def _registered(cls: type) -> Iterator[tuple[str, Layout]]:
    for ancestor in cls.__mro__:
        yield from reversed(_REGISTRY.get(_full_name(ancestor), {}).items())


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_OUT_IN = matrix(into=1, out=0)
_IN_OUT = matrix(into=0, out=1)
register(nn.Linear, weight=_OUT_IN)
register("transformers.pytorch_utils.Conv1D", weight=_IN_OUT)
register(nn.Bilinear, weight=Layout("matrix", fan_in=(1, 2), fan_out=(0,)))
register(nn.Embedding, weight=lookup())
register(nn.EmbeddingBag, weight=lookup())
register(
    nn.MultiheadAttention, **{"*_proj_weight": _OUT_IN, "in_proj_weight": _OUT_IN, "bias_*": VECTOR}
)
register(nn.RNNBase, **{"weight_*": _OUT_IN})
register(nn.RNNCellBase, **{"weight_*": _OUT_IN})
for _conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register(_conv, weight=_OUT_IN)
for _conv in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    register(_conv, weight=_IN_OUT)
for _norm in (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm):  # whatever their normalized_shape
    register(_norm, weight=VECTOR, bias=VECTOR)
