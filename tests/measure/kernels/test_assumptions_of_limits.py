"""What a limit assumes, and a model may break: random weights, all tokens, gradients, modes."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.theory import kernels

WIDTH, TOKENS = 64, 5


class Net(nn.Module):
    """An embedding, one of the functions below, and a readout."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.embed = nn.Linear(6, WIDTH)
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)
        self.c = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.readout = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.function(self, self.embed(x))
        return self.readout(h.mean(1) if h.dim() == 3 else h)


def example(tokens: bool = False) -> Tensor:
    shape = (3, TOKENS, 6) if tokens else (3, 6)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def middle(net: Net, h: Tensor) -> Tensor:
    return torch.tanh(net.a(torch.relu(h)))


class SameGradient(torch.autograd.Function):
    """tanh with the gradient of the identity."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        return grads[0]


def without_gradients(net: Net, h: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.a(torch.relu(h))
    return torch.relu(h)


def hooked(net: Net, h: Tensor) -> Tensor:
    h = net.a(h)
    h.register_hook(lambda gradient: gradient / 2)
    return torch.relu(h)


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], 8, -1).transpose(1, 2)


def first_keys(net: Net, h: Tensor) -> Tensor:
    q, k, v = heads(net.a(h)), heads(net.b(h)), heads(net.c(h))
    y = functional.scaled_dot_product_attention(q, k[:, :, :3], v[:, :, :3])
    return y.transpose(1, 2).flatten(2)


def some_tokens(net: Net, h: Tensor) -> Tensor:
    return torch.relu(h)[:, :3].transpose(1, 2).transpose(1, 2).mean(1)


def reversed_sum(net: Net, h: Tensor) -> Tensor:
    return torch.relu(h + h[:, torch.arange(WIDTH - 1, -1, -1)])


def reversed_product(net: Net, h: Tensor) -> Tensor:
    return h * torch.sigmoid(h[:, torch.arange(WIDTH - 1, -1, -1)])


def random_depth(net: Net, h: Tensor) -> Tensor:
    return h + net.a(torch.relu(h)) * float(torch.rand(()) > 0.3)


# Function, whether inputs have tokens, and what the message names
CUT = {
    "detach": (lambda net, h: torch.relu(net.a(torch.relu(h)).detach()), False, "detach"),
    "data": (lambda net, h: torch.relu(net.a(h.data)), False, "data"),
    "no_grad": (without_gradients, False, "gradients"),
    "own gradient": (lambda net, h: SameGradient.apply(net.a(torch.relu(h))), False, "tanh"),
    "half a gradient": (lambda net, h: torch.relu((h + h.detach()) / 2), False, "detach"),
    "hook": (hooked, False, "register_hook"),
    "keys of some tokens": (first_keys, True, "attention"),
    "mean of some tokens": (some_tokens, True, "mean"),
    "sum with itself reversed": (reversed_sum, False, "add"),
    "product with itself reversed": (reversed_product, False, "mul"),
    "random numbers": (random_depth, False, "rand"),
}


@pytest.mark.parametrize("name", CUT)
def test_what_the_limit_would_get_wrong_is_refused(name: str):
    function, tokens, word = CUT[name]
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(Net(function).eval(), example(tokens))
    assert word in str(caught.value)


def constant_bias(net: Net) -> None:
    nn.init.constant_(net.a.bias, 1.0)


def positive(net: Net) -> None:
    nn.init.uniform_(net.a.weight, 0.0, 0.2)


def identity(net: Net) -> None:
    nn.init.eye_(net.a.weight)


def two_sizes(net: Net) -> None:
    net.a.weight.data[::2] *= 3


def low_rank(net: Net) -> None:
    nn.init.normal_(net.a.weight)
    net.a.weight.data = net.a.weight[:, :3] @ net.a.weight[:3].detach() / WIDTH


def frozen(net: Net) -> None:
    net.a.requires_grad_(False)


@pytest.mark.parametrize("change", [constant_bias, positive, identity, two_sizes, low_rank, frozen])
def test_weights_that_are_not_random_are_refused(change):
    torch.manual_seed(0)
    net = Net(middle).eval()
    x = example()
    o1.kernel_from_module(net, x)
    change(net)
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(net, x)
    assert "'a." in str(caught.value)


def test_layers_with_equal_weights_are_refused():
    def blocks(net: Net, h: Tensor) -> Tensor:
        h = h + net.a(torch.relu(h))
        return h + net.b(torch.relu(h))

    net = Net(blocks).eval()
    o1.kernel_from_module(net, example())
    net.b.load_state_dict(net.a.state_dict())
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(net, example())
    assert "equal values" in str(caught.value)


@pytest.mark.parametrize("copy", [lambda w: w.T, lambda w: -0.5 * w, lambda w: w + w.roll(1)])
def test_layers_with_correlated_weights_are_refused(copy: Callable[[Tensor], Tensor]):
    def blocks(net: Net, h: Tensor) -> Tensor:
        return net.b(torch.relu(net.a(torch.relu(h))))

    torch.manual_seed(0)
    net = Net(blocks).eval()
    o1.kernel_from_module(net, example())
    net.b.weight.data = copy(net.a.weight.data).clone()
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(net, example())
    assert "'b.weight'" in str(caught.value)


class FewInputs(nn.Module):
    """A function of neurons that are sums of `inputs` weights, or rows of a table."""

    def __init__(self, first: nn.Module, between: nn.Module | None = None):
        super().__init__()
        self.first = first
        self.between = between or nn.Identity()
        self.last = nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sin(3 * self.between(self.first(x))))


def table(law: Callable[[Tensor], Tensor]) -> nn.Module:
    module = nn.Embedding(9, 256)
    law(module.weight)
    return module


def gaussian_line() -> nn.Module:
    module = nn.Linear(1, 256)
    nn.init.normal_(module.weight)
    nn.init.normal_(module.bias)
    return module


def test_neurons_that_are_not_gaussian_are_refused():
    """A uniform distribution of the weights is seen in sums of one or two of them."""
    torch.manual_seed(0)
    ids = torch.tensor([1, 3])
    for first, x in (
        (nn.Linear(1, 256), torch.randn(2, 1)),
        (nn.Linear(2, 256), torch.randn(2, 2)),
        (table(nn.init.uniform_), ids),
    ):
        if isinstance(first, nn.Embedding):
            first.weight.data -= 0.5
        for between in (None, nn.LayerNorm(256)):
            with refuses("no-infinite-width", argument="model"):
                o1.kernel_from_module(FewInputs(first, between), x)
        hidden = nn.Linear(256, 256)
        o1.kernel_from_module(FewInputs(first, hidden), x)  # sums of many weights
    for first, x in (
        (gaussian_line(), torch.randn(2, 1)),
        (nn.Linear(8, 256), torch.randn(2, 8)),
        (table(nn.init.normal_), ids),
    ):
        o1.kernel_from_module(FewInputs(first), x)


def test_the_default_precision_of_torch_does_not_matter():
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)).float()
        o1.kernel_from_module(net, torch.randn(2, 8).float())
        o1.kernel_from_module(net.double(), torch.randn(2, 8))
    finally:
        torch.set_default_dtype(before)


def uniform(p: Tensor) -> Tensor:
    return nn.init.uniform_(p, -0.3, 0.3)


@pytest.mark.parametrize("law", [nn.init.normal_, uniform, nn.init.orthogonal_])
def test_random_weights_are_not_refused(law):
    for seed in range(8):
        torch.manual_seed(seed)
        net = Net(middle).eval()
        for p in net.parameters():
            if p.dim() == 2:
                law(p)
            elif p is not net.norm.weight:
                nn.init.normal_(p, 0.0, 0.1)
        o1.kernel_from_module(net, example())


def test_gains_that_differ_are_refused_and_trained_gains_are_named():
    net = Net(lambda net, h: torch.tanh(net.norm(h))).eval()
    assert o1.kernel_from_module(net, example()).left_out == ("norm.weight", "norm.bias")
    nn.init.normal_(net.norm.weight)
    with refuses("no-infinite-width", argument="model"):
        o1.kernel_from_module(net, example())


def test_dropout_counts_where_it_acts():
    def dropped(net: Net, h: Tensor) -> Tensor:
        return net.a(functional.dropout(torch.relu(h), 0.4, training=True))

    def kept(net: Net, h: Tensor) -> Tensor:
        return net.a(functional.dropout(torch.relu(h), 0.4, training=False))

    x = example()
    assert kernels.Dropout(0.6) in o1.kernel_from_module(Net(dropped).eval(), x).net.layers
    assert kernels.Dropout(0.6) not in o1.kernel_from_module(Net(kept).train(), x).net.layers


def test_branches_of_training_mode_are_followed():
    def by_mode(net: Net, h: Tensor) -> Tensor:
        return torch.relu(h) if net.training else torch.tanh(h)

    x = example()
    relu, tanh = kernels.Activation("relu"), kernels.Activation("tanh")
    net = Net(by_mode)
    assert relu in o1.kernel_from_module(net.train(), x).net.layers
    assert net.training
    assert tanh in o1.kernel_from_module(net.eval(), x).net.layers


def test_pools_with_another_divisor_are_refused():
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, WIDTH, 3, padding=1)
            self.readout = nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = functional.avg_pool2d(self.conv(x), 2, 2, 0, False, True, 3)
            return self.readout(torch.relu(h).mean((2, 3)))

    with refuses("no-infinite-width", argument="model"):
        o1.kernel_from_module(Pool().eval(), torch.randn(2, 2, 4, 4))


def test_padding_is_zero():
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 512, padding_idx=2)
            self.a = nn.Linear(512, 512, bias=False)
            self.readout = nn.Linear(512, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.readout(torch.relu(self.a(self.table(ids))).mean(1))

    torch.manual_seed(0)
    net = Words().eval()
    ids = torch.tensor([[0, 2, 2], [1, 3, 4], [2, 2, 2]])
    limit = o1.kernel_from_module(net, ids)
    assert limit.empty_rows == (2,)
    kernel = np.asarray(limit(ids).nngp)
    square = float(net.readout.weight.detach().square().mean())
    bias = float(net.readout.bias.detach().square().mean())
    with torch.no_grad():
        h = torch.relu(net.a(net.table(ids))).mean(1)
    measured = (h @ h.T * square + bias).numpy()
    # the mean of 512 squares of halved Gaussians has the relative error sqrt(5 / 512)
    np.testing.assert_allclose(kernel, measured, atol=4 * (5 / 512) ** 0.5 * kernel.max())
    assert kernel[2, 2] == pytest.approx(bias)


@pytest.mark.parametrize(("largest", "accepted"), [(None, True), (2.0, False)])
def test_large_biases_that_are_not_gaussian_are_refused(largest: float | None, accepted: bool):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 4))
    if largest is not None:
        nn.init.uniform_(model[0].bias, -largest, largest)
    x = torch.randn(3, 20)
    if accepted:
        o1.kernel_from_module(model, x)
        return
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(model, x)
    assert "0.bias" in str(caught.value)
