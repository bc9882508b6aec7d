"""Limits of PyTorch models: the composed layers, and wide finite networks as an oracle."""

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn

import orderone as o1
from orderone.theory import kernels


class Residual(nn.Module):
    """A small residual network: projected skip, batch norm, pools."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.skip = nn.Conv2d(width, width, 1, stride=2)
        self.act = nn.ReLU(inplace=True)
        self.readout = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.a(torch.relu(self.norm(x)))
        x = self.act(x)
        x = self.b(x) + self.skip(x)
        return self.readout(nn.functional.gelu(x).mean((2, 3)))


class Tokens(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(7, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.head = nn.Linear(width, 8)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.table(ids)
        h = h + 0.5 * self.mlp(self.norm(h))
        return self.head(h.mean(1))


class Patches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, width, 2, stride=2)
        self.mlp = nn.Linear(width, width)
        self.head = nn.Linear(width * 4, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(torch.tanh(self.mlp(h)).flatten(1))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 8))


BUILD = {"mlp": mlp, "residual": Residual, "tokens": Tokens, "patches": Patches}


def inputs(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if name == "tokens":
        return torch.randint(0, 7, (3, 4), generator=generator)
    shape = (3, 8) if name == "mlp" else (3, 2, 4, 4)
    return torch.randn(shape, generator=generator)


def test_layers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 50), nn.ReLU(), nn.Dropout(0.2), nn.Linear(50, 2, bias=False)
    )
    found = o1.kernel_from_module(model).net
    squares = {n: float(p.detach().double().square().mean()) for n, p in model.named_parameters()}
    first, bias = 3 * squares["0.weight"], squares["0.bias"]
    last = 50 * squares["3.weight"]
    dropout = kernels.Dropout(0.8)
    expected = [
        kernels.Dense(first, bias),
        kernels.Activation("relu"),
        dropout,
        kernels.Dense(last),
    ]
    assert found.layers == tuple(expected)
    assert o1.kernel_from_module(model.eval()).net.layers == tuple(
        x for x in expected if x != dropout
    )


@pytest.mark.parametrize("name", BUILD)
def test_wide_networks_have_this_kernel(name: str):
    """Means over networks of width 256, with their standard errors."""
    torch.manual_seed(0)
    x = inputs(name)
    measured, predicted = [], []
    for _ in range(12):
        model = BUILD[name](256).eval()
        measured.append(o1.empirical_nngp(model, x, outputs="mean").numpy())
        predicted.append(np.asarray(o1.kernel_from_module(model, x)(x).nngp))
    mean = np.mean(measured, 0)
    error = np.std(measured, 0, ddof=1) / len(measured) ** 0.5
    assert (abs(mean - np.mean(predicted, 0)) < 4 * error + 0.03 * mean.max()).all()


@pytest.mark.parametrize("name", ["mlp", "tokens"])
def test_example_batches_are_found(name: str):
    model = BUILD[name](16).eval()
    x = inputs(name)
    np.testing.assert_allclose(
        o1.kernel_from_module(model)(x).ntk, o1.kernel_from_module(model, x)(x).ntk
    )


def test_images_of_one_pixel():
    model = nn.Sequential(nn.Conv2d(2, 16, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).eval()
    assert o1.kernel_from_module(model, inputs("residual"))(inputs("residual")).ntk.shape == (3, 3)


def test_projected_skip_and_shapes():
    model = Residual(16).eval()
    layers = o1.kernel_from_module(model, inputs("residual")).net.layers
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Conv", "Residual", "Activation", "Sum", "Activation", "AveragePool", "Dense"]


class Overlapping(nn.Module):
    """Queries and keys that share rows of one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return h[..., :8] * torch.sigmoid(h[..., 4:])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(torch.relu(self.a(x)))


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (Overlapping(), "overlap"),
        (Twice(), "a.weight"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)), "max_pool2d"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU()), "conv2d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), "softmax"),
    ],
)
def test_what_has_no_limit_is_named(model: nn.Module, word: str):
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(model.eval())
    assert word in str(caught.value)


def test_an_example_batch_that_the_model_does_not_accept_is_named():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    with refuses("batch-not-accepted", argument="inputs"):
        o1.kernel_from_module(model, torch.ones(2))


def test_functions_with_a_name_in_theory_are_not_searched_for_kinks(monkeypatch):
    """The search takes 50 ms; every activation of a model had one."""

    def search(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr("orderone.theory.activations.registry.from_callable", search)
    torch.manual_seed(0)
    o1.kernel_from_module(mlp(64), torch.randn(2, 8))
    with pytest.raises(AssertionError):
        o1.kernel_from_module(nn.Sequential(nn.Linear(8, 64), nn.Mish()), torch.randn(2, 8))
