"""Content of a tensor of any layout and type: sparse, nested and quantized ones, too."""

import torch
from torch import Tensor

from orderone.torch_compat import get_unwrapped, is_functorch_wrapped_tensor, sparse_parts


def content_of(x: Tensor) -> bytes:
    """Return the values of a tensor, which is not on the meta device, as bytes.

    A tensor that a pass under vmap has left behind gives the values of all members.
    """
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    x = x.detach().cpu()
    if x.is_nested:
        return b"".join(content_of(part) for part in x.unbind())
    if x.layout != torch.strided:
        return b"".join(content_of(part) for part in sparse_parts(x).values())
    if x.is_quantized:
        x = x.dequantize()
    plain = x.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.stride() != (1,):  # one expanded entry counts as contiguous
        plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.view(torch.uint8).numpy().tobytes()
