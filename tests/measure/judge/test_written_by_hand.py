"""Networks of kinds that no other test has, scaled by hand for Adam, with and without one fault."""

import pytest
import torch
from torch import Tensor, nn

import orderone as o1

BASE = 32
RATES = {"first": 0, "hidden": -1, "last": -1}  # exponents of the width, for matrices


class Siamese(nn.Module):
    """One encoder for two inputs; the head reads the difference."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.hidden = nn.Linear(width, width, bias=False)
        self.last = nn.Linear(width, 4, bias=False)

    def encoded(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(torch.relu(self.first(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.encoded(x[:, :4]) - self.encoded(x[:, 4:])).abs())


class Sets(nn.Module):
    """The mean over the elements of a set, between two layers."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.hidden = nn.Linear(width, width, bias=False)
        self.last = nn.Linear(width, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        elements = torch.relu(self.first(x.view(-1, 4, 2)))
        return self.last(torch.relu(self.hidden(elements.mean(1))))


class Euler(nn.Module):
    """One layer that is applied several times, as by Euler's method."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.hidden = nn.Linear(width, width, bias=False)
        self.last = nn.Linear(width, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for _ in range(3):
            h = h + 0.3 * torch.tanh(self.hidden(h))
        return self.last(h)


def scaled_by_hand(network, fault, power):
    def build(width):
        model = network(width)
        growth = width / BASE
        with torch.no_grad():
            model.last.weight *= growth**-0.5
            if fault == "init":
                model.hidden.weight *= growth**power
        groups = []
        for name, tensor in model.named_parameters():
            exponent = RATES[name.partition(".")[0]]
            if name == fault:
                exponent += power
            groups.append({"params": [tensor], "lr": 1e-2 * growth**exponent})
        return model, torch.optim.Adam(groups, eps=1e-12)

    return build


def check(network, fault="", power=0.0):
    generator = torch.Generator().manual_seed(5)
    batch = (torch.randn(64, 8, generator=generator), torch.arange(64) % 4)
    build = scaled_by_hand(network, fault, power)
    return o1.coord_check(build, [32, 64, 128, 256], optimizer="adam", lr=1e-2, batches=batch)


@pytest.mark.parametrize("network", [Siamese, Sets, Euler])
def test_healthy_networks_pass(network):
    result = check(network)
    assert result.passed, str(result)


@pytest.mark.parametrize("network", [Siamese, Sets, Euler])
@pytest.mark.parametrize(
    ("fault", "power"),
    [
        ("hidden.weight", 0.5),
        ("first.weight", -1),
        ("first.bias", -1),
        ("last.weight", 1),
        ("init", 0.5),
    ],
)
def test_one_fault_fails_and_is_named(network, fault, power):
    result = check(network, fault, power)
    assert result.verdict == "FAIL", str(result)
    tensor = "hidden" if fault == "init" else fault
    assert tensor in result.causes[0]


def test_decay_of_complex_weights_is_measured_with_their_imaginary_parts():
    class Complex(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.first = nn.Linear(8, width)
            values = torch.complex(torch.zeros(width, width), torch.randn(width, width))
            self.hidden = nn.Parameter(values * width**-0.5)
            self.last = nn.Linear(width, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.first(x)).to(self.hidden.dtype)
            return self.last((h @ self.hidden).imag)

    batch = (torch.randn(64, 8), torch.arange(64) % 4)
    result = o1.coord_check(Complex, [16, 32, 64], lr=1e-2, batches=batch, weight_decay=0.1)
    assert ("hidden", "decay") in set(zip(result.frame.module, result.frame.quantity, strict=True))
