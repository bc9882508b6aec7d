"""Kernels and linearizations of models that torch.func or forward mode get wrong, or refuse."""

# pyright: reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import orderone as o1

F64 = torch.float64


class Net(nn.Module):
    """A function of inputs and of the module, with these parameters and modules."""

    def __init__(self, function: Callable[..., Tensor], **members: Any) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def parameter(*shape: int, dtype: torch.dtype = F64) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=dtype))


class Sign(torch.autograd.Function):
    """A sign whose backward pass is that of the identity near 0, without second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * (ctx.saved_tensors[0].abs() < 1)


def layer_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 2))


def without_gradient(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.a(x)
    return net.b(h)


def doubled_gradient(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    if h.requires_grad:
        h.register_hook(lambda gradient: 2 * gradient)
    return net.b(h)


def a_layer_by_value(net: Any, x: Tensor) -> Tensor:
    """Choose a layer for each example by itself."""
    h = net.a(x)
    chosen = [net.b(row) if row.sum() > 0 else net.c(row) for row in h]
    return torch.stack(chosen)


def linear(inputs: int = 4, outputs: int = 4) -> nn.Linear:
    return nn.Linear(inputs, outputs)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a layer twice": layer_twice,
    "complex weights": lambda: Net(
        lambda net, x: torch.tanh((x.to(net.w.dtype) @ net.w).abs()) @ net.v,
        w=parameter(4, 5, dtype=torch.complex128),
        v=parameter(5, 2),
    ),
    "padding": lambda: Net(
        lambda net, x: functional.linear(torch.tanh(net.t((x > 0).long()).mean(1)), net.t.weight),
        t=nn.Embedding(3, 4, padding_idx=0),
    ),
    "bag": lambda: Net(
        lambda net, x: net.b(net.t((x > 0).long())), t=nn.EmbeddingBag(3, 4), b=linear(4, 2)
    ),
    "fused attention": lambda: Net(
        lambda net, x: net.a(*[x.unflatten(1, (2, 2))] * 3)[0].flatten(1),
        a=nn.MultiheadAttention(2, 1, batch_first=True),
    ),
    "own backward": lambda: Net(
        lambda net, x: Sign.apply(net.a(x)) @ net.v, a=linear(), v=parameter(4, 2)
    ),
    "weight norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(linear()), nn.Tanh()
    ),
    "no_grad": lambda: Net(without_gradient, a=linear(), b=linear(4, 2)),
    "hook": lambda: Net(doubled_gradient, a=linear(), b=linear(4, 2)),
    "recomputed": lambda: Net(
        lambda net, x: net.b(checkpoint(net.a, x, use_reentrant=False)),
        a=nn.Sequential(linear(), nn.Tanh()),
        b=linear(4, 2),
    ),
    "one number": lambda: Net(lambda net, x: net.a(x)[:, 0], a=linear(4, 1)),
    "scaled weight": lambda: Net(
        lambda net, x: functional.linear(torch.tanh(x @ (0.5 * net.w)), net.v * net.g),
        w=parameter(4, 3),
        v=parameter(2, 3),
        g=parameter(3),
    ),
    "a layer by value": lambda: Net(a_layer_by_value, a=linear(), b=linear(4, 2), c=linear(4, 2)),
}


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """Return (examples, outputs, parameters), by one backward pass each."""
    parameters = list(model.parameters())
    examples = []
    for one in x.unbind():
        rows = []
        for value in model(one[None])[0].flatten():
            gradients = torch.autograd.grad(
                value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(torch.cat([flat(g) for g in gradients]))
        examples.append(torch.stack(rows))
    return torch.stack(examples)


def flat(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten() if x.is_complex() else x.flatten()


def subject(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    return MODELS[name]().double().eval(), torch.randn(5, 4, dtype=F64)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["auto", "jacobian", "products"])
def test_kernels_are_products_of_gradients(name: str, method: str):
    model, x = subject(name)
    before = dict(model.named_parameters())
    J = jacobian(model, x)
    expected = torch.einsum("aop,bop->ab", J, J)
    if method == "products" and name in ("bag", "own backward"):
        with refuses("products-not-exact", argument="method"):
            o1.empirical_ntk(model, x, method=method)
        return
    found = o1.empirical_ntk(model, x, method=method)
    torch.testing.assert_close(found, expected)
    groups = o1.empirical_ntk(model, x, x[:2], groups="each", method=method)
    torch.testing.assert_close(torch.stack(list(groups.values())).sum(0), expected[:, :2])
    for name_after, value in model.named_parameters():
        assert value is before[name_after]  # functional_call left its own in shared layers


@pytest.mark.parametrize("name", MODELS)
def test_linearized_models_are_those_of_backward_passes(name: str):
    model, x = subject(name)
    J = jacobian(model, x)
    tangent = o1.linearize(model)
    directions = [torch.randn_like(p) for p in tangent.parameters()]
    with torch.no_grad():
        for p, direction in zip(tangent.parameters(), directions, strict=True):
            p += direction
    step = torch.cat([flat(direction) for direction in directions])
    output = tangent(x)
    expected = model(x).flatten(1) if output.dim() > 1 else model(x)[:, None]
    torch.testing.assert_close(output.reshape(5, -1), expected + J @ step)
    weights = torch.randn_like(output)
    gradients = torch.autograd.grad(output, list(tangent.parameters()), weights)
    found = torch.cat([flat(g) for g in gradients])
    torch.testing.assert_close(found, torch.einsum("ao,aop->p", weights.reshape(5, -1), J))


def test_second_derivatives_and_derivatives_with_respect_to_inputs():
    torch.manual_seed(0)
    tangent = o1.linearize(nn.Sequential(linear(), nn.Tanh(), linear(4, 1)).double())
    x = torch.randn(3, 4, dtype=F64, requires_grad=True)
    with torch.no_grad():
        for p in tangent.parameters():
            p += torch.randn_like(p)
    assert torch.autograd.gradcheck(tangent, (x,))
    parameters = list(tangent.parameters())
    loss = tangent(x.detach()).square().sum()
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    total = torch.stack([g.square().sum() for g in first]).sum()
    second = torch.autograd.grad(total, parameters)
    J = jacobian(tangent.model, x.detach())  # not at theta_0: only its shape is used
    assert sum(g.numel() for g in second) == J.shape[2]
    step = 1e-6
    with torch.no_grad():
        for p, g in zip(parameters, second, strict=True):
            p += step * g

    def size() -> Tensor:
        gradients = torch.autograd.grad(tangent(x.detach()).square().sum(), parameters)
        return torch.stack([g.square().sum() for g in gradients]).sum()

    moved = (size() - total) / step
    expected = torch.stack([g.square().sum() for g in second]).sum()
    torch.testing.assert_close(moved, expected.detach(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("call", [o1.empirical_ntk, o1.empirical_nngp])
def test_examples_that_influence_each_other_are_refused(call: Callable[..., Tensor]):
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    by_sign = Net(
        lambda net, x: net.a(x) if x[:, 0].max() > 2 else net.b(x), a=linear(), b=linear()
    )
    x[:, 0] = torch.tensor([0.0, 1.0, 1.0, 3.0, 0.0])
    for model in (Net(lambda net, x: net.a(x - x.mean(0)), a=linear()), by_sign):
        with refuses("examples-not-independent", argument="model"):
            call(model, x)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_tables_that_are_no_function_of_an_example_are_refused(options: dict[str, Any]):
    model = nn.Sequential(nn.Embedding(5, 3, **options), nn.Flatten(), linear(6, 2))
    before = model[0].weight.detach().clone()
    ids = torch.tensor([[0, 0], [1, 2]])
    for call in (lambda: o1.empirical_ntk(model, ids), lambda: o1.linearize(model)):
        code = "examples-not-independent" if "scale_grad_by_freq" in options else "invalid-argument"
        with refuses(code, argument="model"):
            call()
    o1.empirical_nngp(model, ids)
    torch.testing.assert_close(model[0].weight.detach(), before)


class Table(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.readout = nn.Embedding(9, 5, sparse=sparse), linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.table(x).mean(1))


def test_sparse_gradients_count_like_others():
    x = torch.tensor([[1, 2, 3], [3, 3, 8]])
    found, expected = (o1.empirical_ntk(Table(sparse), x) for sparse in (True, False))
    torch.testing.assert_close(found, expected)
    outputs = []
    for sparse in (True, False):
        model = o1.linearize(Table(sparse))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.arange(parameter.numel()).reshape(parameter.shape)
        outputs.append(model(x))
    torch.testing.assert_close(*outputs)


def test_products_that_fail_in_the_backward_pass_are_refused():
    model = Net(lambda net, x: net.a(x)[0][:, -1], a=nn.LSTM(4, 3, batch_first=True))
    x = torch.randn(3, 5, 4)
    assert o1.empirical_ntk(model, x).shape == (3, 3)
    with refuses("products-not-exact", argument="method"):
        o1.empirical_ntk(model, x, method="products")


class Storing(nn.Module):
    """A model that stores tensors of its last pass, and those of all passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.readout = linear(4, 8), linear(8, 2)
        self.last: Tensor | None = None
        self.history: list[Tensor] = []
        self.by_name: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.last = torch.relu(self.hidden(x))
        self.history.append(self.last)
        self.by_name["first"] = self.last
        self.made_here = self.last
        return self.readout(self.last)


@pytest.mark.parametrize("passed_before", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: o1.empirical_ntk(model, x, method="jacobian"),
        lambda model, x: o1.empirical_ntk(model, x, method="products"),
        o1.empirical_nngp,
        o1.kernel_from_module,
        lambda model, x: o1.measure.kernels.empirical_adam_ntk(
            model, x, gradients={name: torch.ones_like(p) for name, p in model.named_parameters()}
        ),
    ],
)
def test_kernels_leave_no_tensors_in_a_model(call, passed_before: bool):
    """Tensors of `torch.vmap` cannot be copied or saved."""
    model, x = Storing(), torch.randn(3, 4)
    if passed_before:
        model(x)
    last, history, by_name = model.last, list(model.history), dict(model.by_name)
    call(model, x)
    assert model.last is last
    assert model.history == history
    assert model.by_name == by_name
    assert hasattr(model, "made_here") is passed_before


def test_models_that_store_tensors_are_linearized():
    model, x = Storing(), torch.randn(3, 4)
    model(x)
    kernel = o1.empirical_ntk(model, x)
    linear_model = o1.linearize(model)
    torch.testing.assert_close(linear_model(x), model(x))
    torch.testing.assert_close(o1.empirical_ntk(linear_model, x), kernel)
    assert model.last is model.history[-1]
