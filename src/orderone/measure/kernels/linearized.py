"""A model, linearized in its parameters around their present values.

    f_lin(x; theta) = f(x; theta_0) + J(x; theta_0) (theta - theta_0)

Training f_lin is training with a constant tangent kernel: `dynamics` predicts its outputs exactly.

J is that of backward passes, as for `empirical_ntk`: a row for padding, or a function with a
backward pass of its own, has another derivative in forward mode, or none. J v is the transpose of
u -> J^T u, which is linear in u. Where an operation has no second derivative, it is computed row by
row, with one backward pass per output.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from orderone.core.errors import instance
from orderone.measure.kernels.empirical import Model, SelectInput, check_tables
from orderone.measure.kernels.examples import Select, read_output
from orderone.measure.kernels.groups import trained_parameters
from orderone.measure.kernels.jacobians import HALF_TOLERANCE, TOLERANCE, dense
from orderone.measure.kernels.stored_tensors import copied
from orderone.measure.kernels.substituted import call_at
from orderone.observe.inventory import unwrap
from orderone.observe.recomputed import without_recomputation
from orderone.torch_compat import tree_leaves


class Linearized(nn.Module):
    """A linearized model; `model` has its trained parameters, which start at theta_0.

    It is called like the model, and returns the tensor of its outputs. The model stays in eval
    mode, so that it is a function of its inputs.
    """

    model: nn.Module

    def __init__(self, model: nn.Module, select: Select | None = None):
        super().__init__()
        self.model = copied(model).eval()
        self.select = select
        self._names = tuple(trained_parameters(self.model))
        self._row_by_row: bool | None = None  # not known before the first call
        for place, name in enumerate(self._names):
            start = self.model.get_parameter(name).detach().clone()
            self.register_buffer(f"start{place}", start)

    def start(self) -> dict[str, Tensor]:
        """Return theta_0."""
        return {name: self.get_buffer(f"start{place}") for place, name in enumerate(self._names)}

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        at = {name: value.detach().requires_grad_() for name, value in self.start().items()}
        directions: list[Tensor] = []
        for name, value in at.items():
            directions.append(self.model.get_parameter(name) - value.detach())
        with torch.enable_grad(), twice_differentiable():
            output = call_at(self.model, at, args, kwargs)
            tangent = Tangent(read_output(output, self.select), tuple(at.values()))
        if not tangent.value.requires_grad:  # no trained parameter has an effect
            return tangent.value
        if self._row_by_row is None:
            self._row_by_row = not tangent.is_exact()
        tangent.row_by_row = self._row_by_row
        if torch.is_grad_enabled() and _differentiable(args, kwargs):
            return tangent.value + tangent.along(directions, keep_graph=True)
        return tangent.value.detach() + Push.apply(tangent, *directions)

    def train(self, mode: bool = True) -> "Linearized":
        """Set the mode of this module; the model inside stays in eval mode."""
        self.training = mode
        return self


@dataclass
class Tangent:
    """Outputs of a model, and the Jacobian J with respect to its parameters there."""

    value: Tensor
    parameters: tuple[Tensor, ...]
    row_by_row: bool = False

    def gradients(self, weights: Tensor, keep_graph: bool = False) -> tuple[Tensor, ...]:
        """Return the products of J^T and `weights`, one for each parameter."""
        gradients = torch.autograd.grad(
            self.value,
            self.parameters,
            weights,
            retain_graph=True,
            create_graph=keep_graph,
            allow_unused=True,
            materialize_grads=True,
        )
        return tuple(dense(gradient) for gradient in gradients)

    def along(self, directions: Sequence[Tensor], keep_graph: bool = False) -> Tensor:
        """Return the product of J and `directions`, in the shape of the outputs."""
        if self.row_by_row:
            return self._by_rows(directions, keep_graph)
        with torch.enable_grad():
            weights = torch.zeros_like(self.value).requires_grad_()
            gradients = self.gradients(weights, keep_graph=True)
            used = [
                pair for pair in zip(gradients, directions, strict=True) if pair[0].requires_grad
            ]
            if not used:
                return torch.zeros_like(self.value)
            (derivative,) = torch.autograd.grad(
                [gradient for gradient, _ in used],
                weights,
                [direction for _, direction in used],
                retain_graph=True,
                create_graph=keep_graph,
                materialize_grads=True,
                allow_unused=True,
            )
        return derivative

    def _by_rows(self, directions: Sequence[Tensor], keep_graph: bool) -> Tensor:
        rows: list[Tensor] = []
        for seed in torch.eye(self.value.numel()).to(self.value):
            gradients = self.gradients(seed.reshape(self.value.shape), keep_graph)
            rows.append(_product(gradients, directions))
        return torch.stack(rows).reshape(self.value.shape).to(self.value.dtype)

    def is_exact(self) -> bool:
        """Return whether second derivatives exist: (J v) . u = v . (J^T u) for random u and v."""
        generator = torch.Generator().manual_seed(0)

        def draw(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator).to(like)

        directions = [draw(parameter) for parameter in self.parameters]
        weights = draw(self.value)
        gradients = self.gradients(weights)
        try:
            derivative = self.along(directions)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError):  # an operation without second derivative
            return False
        scale = sum(
            float((g.abs() * d.abs()).sum()) for g, d in zip(gradients, directions, strict=True)
        )
        difference = float((derivative * weights).sum()) - float(_product(gradients, directions))
        return abs(difference) <= TOLERANCE.get(self.value.dtype, HALF_TOLERANCE) * scale


class Push(torch.autograd.Function):
    """Product of J and directions. It is linear, so its gradient is a `Pull`."""

    @staticmethod
    def forward(ctx: Any, tangent: Tangent, *directions: Tensor) -> Tensor:
        ctx.tangent = tangent
        return tangent.along(directions)

    @staticmethod
    def backward(ctx: Any, *weights: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *Pull.apply(ctx.tangent, weights[0]))


class Pull(torch.autograd.Function):
    """Product of J^T and weights of outputs. It is linear, so its gradient is a `Push`."""

    @staticmethod
    def forward(ctx: Any, tangent: Tangent, weights: Tensor) -> tuple[Tensor, ...]:
        ctx.tangent = tangent
        return tangent.gradients(weights)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor) -> tuple[Tensor | None, ...]:
        return None, Push.apply(ctx.tangent, *directions)


def linearize(model: Model, *, select: SelectInput = None) -> Linearized:
    """Return the model, linearized around its present parameters, as a module to train.

    The module has copies of the parameters; `model` is not changed. `select` is that of
    `empirical_ntk`.
    """
    model = unwrap(instance(model, nn.Module, "model", "pass a PyTorch model"))
    check_tables(model)
    trained_parameters(model)
    with torch.no_grad():
        return Linearized(model, select)


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Choose operations with second derivatives: fused attention and cuDNN have none."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.backends.cudnn.flags(enabled=False),
            without_recomputation(),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


def _product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product; that of complex tensors counts real and imaginary parts."""
    total = left[0].new_zeros((), dtype=left[0].real.dtype)
    for a, b in zip(left, right, strict=True):
        total = total + (a.conj() * b).real.sum()
    return total


def _differentiable(args: object, kwargs: object) -> bool:
    """Return whether an input needs a gradient."""
    leaves = tree_leaves((args, kwargs))
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)
