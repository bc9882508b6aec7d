"""Empirical kernels against Jacobians by autograd, output by output, in double precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from orderone.core.errors import InputError
from orderone.measure.kernels import empirical_nngp, empirical_ntk, ntk_costs

Read = Callable[[Any], Tensor]


def rows(x: Any, i: int) -> Any:
    if isinstance(x, dict):
        return {k: rows(v, i) for k, v in x.items()}
    if isinstance(x, tuple):
        return tuple(rows(v, i) for v in x)
    return x[i : i + 1]


def jacobian(model: nn.Module, x: Any, names: list[str] | None = None, read: Read = lambda o: o):
    """One row per output of one example, one backward pass each, with the model as it is called."""
    model.eval()
    parameters = [p for n, p in model.named_parameters() if p.requires_grad]
    if names is not None:
        table = dict(model.named_parameters())
        parameters = [table[name] for name in names]
    first = x
    while not isinstance(first, Tensor):
        first = next(iter(first.values())) if isinstance(first, dict) else first[0]
    out = []
    for i in range(len(first)):
        one = rows(x, i)
        if isinstance(one, dict):
            y = model(**one)
        elif isinstance(one, tuple):
            y = model(*one)
        else:
            y = model(one)
        flat = read(y)[0].reshape(-1)
        lines = []
        for value in flat:
            grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            filled = [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, parameters, strict=True)
            ]
            lines.append(torch.cat([g.reshape(-1) for g in filled]))
        out.append(torch.stack(lines))
    return torch.stack(out).detach()  # (examples, outputs, parameters)


def brute(model: nn.Module, x1: Any, x2: Any = None, **options: Any) -> Tensor:
    left = jacobian(model, x1, **options)
    right = left if x2 is None else jacobian(model, x2, **options)
    return torch.einsum("aow,bpw->abop", left, right)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 8, (3, 1), padding="same", dilation=(2, 1), groups=4)
        self.c = nn.Conv2d(8, 6, 3, padding=1, padding_mode="circular")
        self.group = nn.GroupNorm(2, 6)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.act = nn.ReLU(inplace=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.a(x)))
        x = self.act(self.group(self.c(x + self.b(x))))
        return self.out(self.up(x).mean((2, 3)))


class Tokens(nn.Module):
    """Tied table, padding, gains and shifts as operators, matrices on the left."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.position = nn.Parameter(torch.randn(1, 5, 6))
        self.gain = nn.Parameter(torch.rand(6) + 0.5)
        self.mix = nn.Parameter(torch.randn(5, 5))
        self.matrix = nn.Parameter(torch.randn(6, 6))
        self.norm = nn.LayerNorm(6)
        self.rms = nn.RMSNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.unused = nn.Linear(2, 2)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids) + self.position
        h = self.norm(h) + self.attention(h, h, h, need_weights=False)[0]
        h = torch.tanh(self.mix @ (self.gain * h)) @ self.matrix
        h = self.rms(h) - self.position
        return functional.linear(h, self.table.weight)[:, 1:4]


class Double(torch.autograd.Function):
    """A function without a rule for vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grads[0]


class Odd(nn.Module):
    """Decisions by value, writing in place, a custom function, recomputed layers, weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 5)
        self.b = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))
        self.c = nn.Linear(5, 2)
        self.recurrent = nn.GRU(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if h.sum() > 0:
            h = self.a(h[..., :4])
        h = Double.apply(h) / 3
        buffer = torch.zeros_like(h)
        buffer[:, 1:] = h[:, 1:]
        h = checkpoint(self.b, buffer, use_reentrant=False)
        h, _ = self.recurrent(h.unsqueeze(1))
        return self.c(h[:, 0])


class TimeFirst(nn.Module):
    """Examples are on the second axis inside."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.conv = nn.Conv1d(6, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.transpose(0, 1))
        h = self.conv(h.permute(1, 2, 0))
        return h.flatten(1)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3)),
        lambda: torch.randn(5, 4),
    ),
    "conv": (Convolutional, lambda: torch.randn(4, 3, 8, 8)),
    "tokens": (Tokens, lambda: torch.randint(0, 11, (4, 5))),
    "odd": (Odd, lambda: torch.randn(5, 4)),
    "time first": (TimeFirst, lambda: torch.randn(3, 5, 6)),
}


def subject(name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(1)
    build, inputs = MODELS[name]
    model = build().double()
    with torch.no_grad():
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
    x = inputs()
    return model, x.double() if x.is_floating_point() else x


@pytest.mark.parametrize("name", MODELS)
def test_every_pair_of_outputs(name: str):
    model, x = subject(name)
    expected = brute(model, x)
    model.train()
    found = empirical_ntk(model, x, outputs="all")
    assert model.training
    shape = model.eval()(x).shape[1:]
    assert found.shape == (len(x), len(x), *shape, *shape)
    torch.testing.assert_close(found.reshape(expected.shape), expected, rtol=1e-9, atol=1e-9)
    rectangle = empirical_ntk(model, x[:2], x[1:], outputs="all")
    torch.testing.assert_close(rectangle, found[:2, 1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_trace_mean_index_and_tiles(name: str):
    model, x = subject(name)
    full = brute(model, x)
    trace = full.diagonal(dim1=2, dim2=3).sum(-1)
    outputs = full.shape[2]
    torch.testing.assert_close(empirical_ntk(model, x), trace, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        empirical_ntk(model, x, outputs="mean"), trace / outputs, rtol=1e-9, atol=1e-9
    )
    shape = model.eval()(x).shape[1:]
    index = tuple(int(i) for i in np.unravel_index(outputs - 1, shape))
    found = empirical_ntk(model, x, outputs=index)
    torch.testing.assert_close(found, full[:, :, -1, -1], rtol=1e-9, atol=1e-9)
    options: dict[str, Any] = {"outputs": "all", "method": "jacobian"}
    whole = ntk_costs(model, x, **options)
    memory = 2 * whole.bytes // whole.tile
    less = ntk_costs(model, x, memory=memory, **options)
    assert less.tile * less.chunk < whole.tile * whole.chunk
    assert less.bytes <= memory
    tiled = empirical_ntk(model, x, memory=memory, **options)
    torch.testing.assert_close(tiled.reshape(full.shape), full, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["mlp", "conv", "tokens"])
def test_groups_add_up(name: str):
    model, x = subject(name)
    each = empirical_ntk(model, x, groups="each")
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    assert list(each) == names
    torch.testing.assert_close(sum(each.values()), empirical_ntk(model, x))
    for group in names[:4]:
        expected = brute(model, x, names=[group]).diagonal(dim1=2, dim2=3).sum(-1)
        torch.testing.assert_close(each[group], expected, rtol=1e-9, atol=1e-9)
    two = empirical_ntk(model, x, groups={"biases": "*bias*", "first": [names[0]]})
    torch.testing.assert_close(two["first"], each[names[0]])
    biases = [each[n] for n in names if "bias" in n]
    torch.testing.assert_close(two["biases"], sum(biases))


@pytest.mark.parametrize("name", ["mlp", "conv", "tokens"])
def test_products_with_vectors_agree(name: str):
    model, x = subject(name)
    for outputs in ("all", "trace"):
        found = empirical_ntk(model, x, x[:2], outputs=outputs, method="products")
        expected = empirical_ntk(model, x, x[:2], outputs=outputs, method="jacobian")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_products_that_are_not_possible_are_refused():
    model, x = subject("odd")
    with refuses("products-not-exact", argument="method"):
        empirical_ntk(model, x, outputs="all", method="products")


def test_the_cheaper_method_is_taken():
    """With many outputs per position, no contraction of Jacobians is cheap."""
    few = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 30, 2))
    many = nn.Sequential(nn.Conv1d(2, 64, 3), nn.ReLU(), nn.Conv1d(64, 64, 3), nn.Flatten())
    x = torch.randn(3, 2, 32)
    assert ntk_costs(few, x, outputs="all").method == "jacobian"
    many_costs = ntk_costs(many, x, outputs="all")
    assert many_costs.method == "products"
    assert many_costs.products_flops < many_costs.jacobian_flops


def test_frozen_parameters_do_not_count():
    model, x = subject("mlp")
    frozen = model.get_parameter("0.weight")
    frozen.requires_grad_(False)
    expected = brute(model, x).diagonal(dim1=2, dim2=3).sum(-1)
    torch.testing.assert_close(empirical_ntk(model, x), expected)
    assert all(parameter.grad is None for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(InputError, match="requires a gradient"):
        empirical_ntk(model, x)


def test_half_precision_is_summed_in_single():
    model, x = subject("mlp")
    model = model.to(torch.bfloat16)
    found = empirical_ntk(model, x.bfloat16())
    assert found.dtype == torch.float32
    expected = brute(model, x.bfloat16()).float().diagonal(dim1=2, dim2=3).sum(-1)
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


def test_models_that_are_no_function_of_one_example_are_refused():
    batch_statistics = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises((InputError, ValueError)):
        empirical_ntk(batch_statistics, torch.randn(4, 4))

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            return h - h.mean(0) / 2

    with refuses("examples-not-independent", argument="model"):
        empirical_ntk(Centred(), torch.randn(4, 4))

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(self.linear(x), 0.5, training=True)

    with refuses("examples-not-independent", argument="model"):
        empirical_ntk(Noisy(), torch.randn(4, 4))


def test_arguments():
    model, x = subject("mlp")
    with pytest.raises(InputError, match="outputs"):
        empirical_ntk(model, x, outputs=7)
    with refuses("unknown-name", argument="groups"):
        empirical_ntk(model, x, groups=["nothing*"])
    with refuses("unknown-name", argument="method"):
        empirical_ntk(model, x, method="magic")
    with pytest.raises(InputError, match="memory"):
        empirical_ntk(model, x, memory=10)
    with pytest.raises(InputError, match="x1"):
        empirical_ntk(model, 3)  # type: ignore[arg-type]


def test_outputs_of_examples():
    model, x = subject("mlp")
    f = model.eval()(x).detach()
    torch.testing.assert_close(empirical_nngp(model, x), f @ f.T)
    torch.testing.assert_close(empirical_nngp(model, x, outputs="mean", batch=2), f @ f.T / 3)
    full = empirical_nngp(model, x, x[:2], outputs="all")
    torch.testing.assert_close(full, torch.einsum("ao,bp->abop", f, f[:2]))
    torch.testing.assert_close(empirical_nngp(model, x, outputs=-1), f[:, -1:] @ f[:, -1:].T)


def test_wide_matrices_need_no_memory_for_jacobians_that_are_not_formed():
    wide = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = nn.Sequential(wide, nn.Linear(1024, 10))
    found = ntk_costs(model, torch.randn(256, 64), memory=128 * 2**20, method="jacobian")
    assert found.explicit == {"0.0.bias", "0.2.bias", "1.bias"}
    assert found.tile == 256  # one pass over the examples
