"""Activations of theory on tensors, on the tensors' own device.

Activations with closed forms run in any namespace already. For the others, theory has numpy
functions, and PyTorch its own.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from orderone.theory.activations import Activation, get

Elementwise = Callable[[Tensor], Tensor]
OWN: dict[str, Elementwise] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    # from 20 on, the default leaves a step of 2e-9
    "softplus": partial(functional.softplus, threshold=40.0),
    "hard-tanh": functional.hardtanh,
    "selu": functional.selu,
}


def value_and_slope(activation: Activation) -> tuple[Elementwise, Elementwise]:
    """phi and its derivative, which backpropagation takes as zero at a jump."""
    phi = OWN.get(activation.name)
    if phi is not None and activation == get(activation.name):  # users may name theirs alike
        return phi, partial(_slope, phi)

    def slope(x: Tensor) -> Tensor:
        return torch.nan_to_num(activation.derivative(x), posinf=0.0, neginf=0.0)

    return activation, slope


@torch.enable_grad()
def _slope(phi: Elementwise, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(phi(x).sum(), x)[0]
