"""Tangent kernel of AdamW with the measured size of each gradient: S2 (1.95).

    H[a, b, o, p] = sum_w (lambda_w / (|g_w| + eps)) df_o(a)/dw df_p(b)/dw

g_w is the gradient of the loss. With w = w_0 + sqrt(lambda / (|g| + eps)) v, H is the kernel of the
derivatives with respect to v at v = 0, which `empirical_ntk` computes.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, instance
from orderone.core.inputs import Count, Number, UserInput
from orderone.core.reals import real
from orderone.measure.kernels.empirical import Model, Outputs, SelectInput, empirical_ntk
from orderone.measure.kernels.examples import Inputs
from orderone.measure.kernels.groups import trained_parameters
from orderone.measure.kernels.stored_tensors import without_new_tensors
from orderone.measure.kernels.substituted import call_at

# name of a parameter -> tensor; rates may be numbers
Gradients: TypeAlias = Annotated[Mapping[str, Tensor] | None, UserInput]
Rates: TypeAlias = Annotated[Mapping[str, float] | None, UserInput]


class _Rescaled(nn.Module):
    """A model as a function of v, the parameters in units of their steps."""

    def __init__(self, model: nn.Module, scales: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._model = [model]  # not a submodule: its parameters are constants
        self._scales = dict(scales)
        self.names = list(scales)
        steps = [nn.Parameter(torch.zeros_like(scale)) for scale in scales.values()]
        self.steps = nn.ParameterList(steps)
        self.train(model.training)

    def forward(self, *args: object, **kwargs: object) -> object:
        [model] = self._model
        parameters = dict(model.named_parameters())
        moved = {}
        for name, step in zip(self.names, self.steps, strict=True):
            moved[name] = parameters[name].detach() + self._scales[name] * step
        return call_at(model, moved, args, kwargs)


def empirical_adam_ntk(
    model: Model,
    x1: Inputs,
    x2: Inputs | None = None,
    outputs: Outputs = "trace",
    *,
    gradients: Gradients = None,
    rates: Rates = None,
    eps: Number = 1e-8,
    select: SelectInput = None,
    memory: Count | None = None,
) -> Tensor:
    """Return the tangent kernel of AdamW, each parameter divided by the size of its gradient.

    `gradients` are those of the loss by name of the parameter; by default they are `p.grad`, after
    `loss.backward()`. `rates` are learning rates by name, 1 by default. The model is in eval mode,
    as for `empirical_ntk`, whose other arguments these are.
    """
    model = instance(model, nn.Module, "model", "pass a PyTorch model")
    small = real(eps, "eps", above=0)
    scales: dict[str, Tensor] = {}
    for name, parameter in trained_parameters(model).items():
        gradient = parameter.grad if gradients is None else gradients.get(name)
        if not isinstance(gradient, Tensor) or gradient.shape != parameter.shape:
            raise InputError(
                f"gradients: expected a gradient of shape {tuple(parameter.shape)} for {name!r};"
                " call loss.backward() first, or pass gradients={name: tensor, ...}",
                argument="gradients",
            )
        rate = real((rates or {}).get(name, 1.0), f"rates[{name!r}]", least=0)
        scales[name] = (rate / (gradient.detach().abs() + small)).sqrt()
    training = model.training
    model.eval()
    try:
        with without_new_tensors(model):
            return empirical_ntk(
                _Rescaled(model, scales), x1, x2, outputs, select=select, memory=memory
            )
    finally:
        model.train(training)
