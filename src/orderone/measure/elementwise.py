"""Activations of theory as functions of torch tensors.

Activations with closed forms accept tensors already. For the others theory uses numpy functions;
here they are replaced by those of torch.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from orderone.theory.activations import Activation, get

Elementwise = Callable[[Tensor], Tensor]
TORCH_FUNCTIONS: dict[str, Elementwise] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    # with the default threshold of 20, the function has a step of 2e-9
    "softplus": partial(functional.softplus, threshold=40.0),
    "hard-tanh": functional.hardtanh,
    "selu": functional.selu,
}


def value_and_slope(activation: Activation) -> tuple[Elementwise, Elementwise]:
    """Return phi and its derivative, which is zero at a jump, as in backpropagation."""
    phi = TORCH_FUNCTIONS.get(activation.name)
    if phi is not None and activation == get(activation.name):  # users may use the same name
        return phi, partial(_slope, phi)

    def slope(x: Tensor) -> Tensor:
        return torch.nan_to_num(activation.derivative(x), posinf=0.0, neginf=0.0)

    return activation, slope


@torch.enable_grad()
def _slope(phi: Elementwise, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(phi(x).sum(), x)[0]
