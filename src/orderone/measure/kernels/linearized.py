"""A model, linearized in its parameters around their present values.

    f_lin(x; theta) = f(x; theta_0) + J(x; theta_0) (theta - theta_0)

Training f_lin is training with a constant tangent kernel: `dynamics` predicts its outputs exactly.
"""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from orderone.core.errors import instance
from orderone.measure.kernels.empirical import Model, SelectInput
from orderone.measure.kernels.examples import Select, read_output
from orderone.measure.kernels.groups import trained_parameters
from orderone.observe.inventory import unwrap


class Linearized(nn.Module):
    """A linearized model; `model` has its trained parameters, which start at theta_0.

    It is called like the model, and returns the tensor of its outputs. The model stays in eval
    mode, so that it is a function of its inputs.
    """

    model: nn.Module

    def __init__(self, model: nn.Module, select: Select | None = None):
        super().__init__()
        self.model = deepcopy(model).eval()
        self.select = select
        self._names = tuple(trained_parameters(self.model))
        for place, name in enumerate(self._names):
            start = self.model.get_parameter(name).detach().clone()
            self.register_buffer(f"start{place}", start)

    def start(self) -> dict[str, Tensor]:
        """Return theta_0."""
        return {name: self.get_buffer(f"start{place}") for place, name in enumerate(self._names)}

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        start = self.start()
        direction: dict[str, Tensor] = {}
        for name in self._names:
            direction[name] = self.model.get_parameter(name) - start[name]

        def outputs(parameters: Mapping[str, Tensor]) -> Tensor:
            output = functional_call(self.model, dict(parameters), args, kwargs)
            return read_output(output, self.select)

        with sdpa_kernel(SDPBackend.MATH):
            value, derivative, *_ = jvp(outputs, (start,), (direction,))
        assert isinstance(value, Tensor)
        assert isinstance(derivative, Tensor)
        return value.detach() + derivative

    def train(self, mode: bool = True) -> "Linearized":
        """Set the mode of this module; the model inside stays in eval mode."""
        self.training = mode
        return self


def linearize(model: Model, *, select: SelectInput = None) -> Linearized:
    """Return the model, linearized around its present parameters, as a module to train.

    The module has copies of the parameters; `model` is not changed. `select` is that of
    `empirical_ntk`.
    """
    model = unwrap(instance(model, nn.Module, "model", "pass a PyTorch model"))
    trained_parameters(model)
    with torch.no_grad():
        return Linearized(model, select)
