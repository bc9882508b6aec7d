"""Facts about one tensor: where it is, whether it can be sized, how often it was written to."""

import torch
from torch import Tensor, nn

from orderone.torch_compat import get_unwrapped, is_functorch_wrapped_tensor, version_counter

PLAIN: set[type[Tensor]] = {Tensor, nn.Parameter}  # not distributed over processes


def is_here(x: Tensor) -> bool:
    """Return whether a tensor is on the host."""
    return x.is_cpu


def is_measurable(x: Tensor) -> bool:
    """Return whether a tensor is real or complex, dense, and not empty in this process."""
    if not (x.is_floating_point() or x.is_complex()):
        return False
    if x.layout != torch.strided or x.is_nested or x.is_meta:
        return False
    return x.numel() > 0 and (type(x) in PLAIN or local(x).numel() > 0)


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is neither distributed over processes nor inside torch.func."""
    return type(x) in PLAIN and not is_functorch_wrapped_tensor(x)


def local(x: Tensor) -> Tensor:
    """Return a plain tensor with the numbers of `x`.

    If `x` is distributed over processes, this is the part of this process, so that no process waits
    for another. Under torch.func it has all entries of all samples.
    """
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    if type(x) in PLAIN:
        return x
    to_local = getattr(x, "to_local", None)
    if to_local is None:
        return x
    return to_local()


def version(x: Tensor) -> int:
    """Return the number of writes into a tensor; -1 for tensors of inference mode.

    Tensors of inference mode have no counter.
    """
    try:
        return version_counter(x)
    except RuntimeError:
        return -1
