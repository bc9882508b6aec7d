"""Operations that a CPU computes faster for one member after another, if their inputs are large.

For convolutions, vmap makes one convolution with a group per member. That saves calls, and wins
while inputs are small. With larger inputs the grouped kernels take up to 1.8 times as long as
separate convolutions (`benchmarks/stacked_convolutions.py`). Group norm is divided by vmap into
several operations, each of which reads the whole input.

Separate calls also round as in a stand-alone run. The choice depends on sizes and not on measured
times: the same study computes the same numbers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from orderone.training.stacked.one_by_one import for_each_without_draws

if TYPE_CHECKING:
    from orderone.training.stacked.vmap_overrides import FastPaths

CONVOLUTIONS: tuple[Callable[..., Tensor], ...] = (
    torch.conv1d,
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose1d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
)
LARGE_INPUT = 20_000  # entries of one member: from here on, separate convolutions are faster


def convolution(
    func: Callable[..., Tensor],
    mode: "FastPaths",
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: object,
    **named: object,
) -> object:
    """Return the convolutions of all members, one after another; None leaves them to vmap.

    A kernel that all members share is left to vmap, which makes members a part of the batch.
    """
    tensors = [x for x in (input, weight, bias) if x is not None]
    if not mode.known(*tensors) or not mode.mapped(weight) or not _is_large(input):
        return None
    return for_each_without_draws(func, mode, input, weight, bias, *args, **named)


def group_norm(
    mode: "FastPaths",
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *args: object,
    **named: object,
) -> object:
    """Return the group norms of all members, one after another; None leaves them to vmap."""
    tensors = [x for x in (input, weight, bias) if x is not None]
    if not mode.known(*tensors) or not _is_large(input):
        return None
    call = (torch.group_norm, mode, input, num_groups, weight, bias, *args)
    return for_each_without_draws(*call, **named)


def _is_large(input: Tensor) -> bool:
    return input.device.type == "cpu" and input.numel() >= LARGE_INPUT
