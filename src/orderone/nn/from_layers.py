"""Networks of finite width, built from the layers whose kernels `theory.kernels` computes.

    z = sqrt(weight_var / n) W h + sqrt(bias_var) b,       W, b ~ N(0, 1)

Weights have variance 1 and a factor in front, as in `theory.kernels.Dense`: only then does the sum
of squared gradients over parameters have a limit as n grows, and this limit is the tangent kernel
of the description. The other layers are those of PyTorch.
"""

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, instance
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.nn.inputs import Layer
from orderone.theory import kernels
from orderone.theory.activations import Activation


def from_layers(
    net: Layer, inputs: Count, width: Count = 256, outputs: Count | None = None
) -> nn.Sequential:
    """Build `net` (layers of `theory.kernels`) as a module for `inputs` features.

    torch's random generator draws the weights.

    Dense layers have `width` neurons; the last one has `outputs`, by default `width`. As usual,
    `eval()` switches dropout off.
    """
    net = instance(
        net, kernels.Layer, "net", "pass kernels.Sequential(...) or another layer of theory.kernels"
    )
    width = count(width, "width")
    if outputs is None:
        last = width
    else:
        last = count(outputs, "outputs")
    return _chain(kernels.Sequential(net), count(inputs, "inputs"), width, last)


class ScaledLinear(nn.Module):
    """Linear layer with standard normal parameters and a factor in front of each tensor."""

    weight: nn.Parameter
    bias: nn.Parameter
    weight_scale: float
    bias_scale: float

    def __init__(self, layer: kernels.Dense, features: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))
        self.bias = nn.Parameter(torch.randn(outputs))
        self.weight_scale = (layer.weight_var / features) ** 0.5
        self.bias_scale = layer.bias_var**0.5

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_scale * self.weight, self.bias_scale * self.bias)

    def extra_repr(self) -> str:
        return (
            f"{self.weight.shape[1]}, {self.weight.shape[0]}, {self.weight_scale:.3g},"
            f" {self.bias_scale:.3g}"
        )


class Elementwise(nn.Module):
    """An activation of theory, with the derivative that theory uses."""

    def __init__(self, phi: Activation):
        super().__init__()
        self.phi = phi

    def forward(self, x: Tensor) -> Tensor:
        return _Elementwise.apply(x, self.phi)  # type: ignore[return-value]

    def extra_repr(self) -> str:
        return self.phi.name


class _Elementwise(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, phi: Activation) -> Tensor:
        return phi(x.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Activation], output: Tensor) -> None:
        x, ctx.phi = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grads[0] * ctx.phi.derivative(x.detach()), None


class ResidualBlock(nn.Module):
    """x + scale * branch(x)."""

    def __init__(self, branch: nn.Module, scale: float):
        super().__init__()
        self.branch = branch
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.branch(x)


class TokenMean(nn.Module):
    """Mean over the last axis but one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(-2)


def _chain(net: kernels.Sequential, features: int, width: int, last: int) -> nn.Sequential:
    """Build the layers of `net`; its last Dense layer has `last` neurons."""
    last_dense = -1
    for i, layer in enumerate(net.layers):
        if isinstance(layer, kernels.Dense):
            last_dense = i
    modules = nn.Sequential()
    for i, layer in enumerate(net.layers):
        if i == last_dense:
            neurons = last
        else:
            neurons = width
        modules.append(to_module(layer, features, neurons))
        if isinstance(layer, kernels.Dense):
            features = neurons
    return modules


@singledispatch
def to_module(layer: object, features: int, width: int) -> nn.Module:
    """Build `layer` for `features` inputs; a Dense layer gets `width` neurons."""
    raise InputError(
        f"layer: expected a layer of theory.kernels, got {layer!r}; for a layer type of your own,"
        " register a builder with to_module.register",
        "wrong-type",
        argument="layer",
    )


@to_module.register
def _(layer: kernels.Dense, features: int, width: int) -> nn.Module:
    return ScaledLinear(layer, features, width)


@to_module.register
def _(layer: kernels.Activation, features: int, width: int) -> nn.Module:
    return Elementwise(layer.phi)


@to_module.register
def _(layer: kernels.Dropout, features: int, width: int) -> nn.Module:
    return nn.Dropout(1 - layer.keep)


@to_module.register
def _(layer: kernels.RMSNorm, features: int, width: int) -> nn.Module:
    return nn.RMSNorm(features, layer.eps, elementwise_affine=False)


@to_module.register
def _(layer: kernels.LayerNorm, features: int, width: int) -> nn.Module:
    return nn.LayerNorm(features, layer.eps, elementwise_affine=False)


@to_module.register
def _(layer: kernels.AveragePool, features: int, width: int) -> nn.Module:
    return TokenMean()


@to_module.register
def _(layer: kernels.Residual, features: int, width: int) -> nn.Module:
    return ResidualBlock(_chain(layer.branch, features, width, features), layer.scale)
