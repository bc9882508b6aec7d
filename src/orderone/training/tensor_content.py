"""Content of a tensor of any layout and type: sparse, nested and quantized ones, too."""

import torch
from torch import Tensor

from orderone.torch_compat import sparse_parts


def content_of(x: Tensor) -> bytes:
    """Return the values of a tensor, which is not on the meta device, as bytes."""
    x = x.detach().cpu()
    if x.is_nested:
        return b"".join(content_of(part) for part in x.unbind())
    if x.layout != torch.strided:
        return b"".join(content_of(part) for part in sparse_parts(x).values())
    if x.is_quantized:
        x = x.dequantize()
    plain = x.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return plain.numpy().tobytes()
