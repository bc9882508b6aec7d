"""Strides of gradients and averages, for torch's fused kernels.

The kernels go through the memory of a tensor, its gradient and its averages as if all had the same
strides. If they do not, entries are updated with the gradients of other entries, without an error.
torch itself makes strides equal. They differ after a checkpoint was loaded into a model whose
weights are not contiguous (`channels_last`), or after a model or a hook has replaced a tensor. The
kernels are wrong for a parameter with gaps in memory, such as a part of another tensor. If a model
has resized a parameter, they write outside of its averages; this is refused.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.core.errors import InputError

AVERAGES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")


def fills_its_memory(p: Tensor) -> bool:
    """Return whether the entries of a tensor have no gaps between them, in whatever order."""
    return p.is_contiguous() or torch.empty_like(p, device="meta").stride() == p.stride()


def like_parameter(x: Tensor, p: Tensor) -> Tensor:
    """Return `x`, or a copy of it with the strides of `p` if it has the shape of `p`."""
    if x.shape != p.shape or x.stride() == p.stride():
        return x
    return torch.empty_like(p, dtype=x.dtype, device=x.device).copy_(x)


@torch.no_grad()
def equal_state_strides(optimizer: Optimizer) -> None:
    """Give the state of every parameter the strides of the parameter."""
    for p, state in optimizer.state.items():
        for name, x in state.items():
            if isinstance(x, Tensor) and x.dim() > 1:
                state[name] = like_parameter(x, p)


@torch.no_grad()
def make_strides_equal(optimizer: Optimizer) -> None:
    """Give gradients and averages the strides of their parameters, if the kernels are fused."""
    for group in optimizer.param_groups:
        if not group.get("fused"):
            continue
        for p in group["params"]:
            if p.grad is None:
                continue
            state = optimizer.state.get(p, {})
            _must_be_as_large(p, state)
            if p.dim() < 2:
                continue
            if _are_contiguous((p, p.grad, *state.values())):
                continue
            p.grad = like_parameter(p.grad, p)
            for name, x in state.items():
                if isinstance(x, Tensor):
                    state[name] = like_parameter(x, p)


def _must_be_as_large(p: Tensor, state: Mapping[str, object]) -> None:
    """Raise an InputError if a model has resized a parameter: kernels would write behind it."""
    for name in AVERAGES:
        x = state.get(name)
        if isinstance(x, Tensor) and x.numel() != p.numel():
            raise InputError(
                f"optimizer: {name} of a parameter has the shape {tuple(x.shape)}, but the"
                f" parameter has the shape {tuple(p.shape)} now; training must not resize"
                " parameters: register them with their final shape, or pass fused=False and resize"
                " the optimizer's state, too",
                argument="optimizer",
            )


def _are_contiguous(values: Iterable[object]) -> bool:
    return all(x.is_contiguous() for x in values if isinstance(x, Tensor))
