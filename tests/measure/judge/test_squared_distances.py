"""Squared distances in front of a softmax or as an output, and what comes before a readout."""

import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.core.errors import code_of

BASE = 32
WIDTHS = [32, 64, 128, 256]


class Distances(nn.Module):
    """Attention by squared distances; two heads that grow."""

    def __init__(self, width: int, power: float):
        super().__init__()
        self.heads = 2
        self.factor = (width / BASE) ** power / (width // self.heads)
        self.first = nn.Linear(8, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.last = nn.Linear(width, 4)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -(queries[..., None, :] - keys[..., None, :, :]).square().sum(-1) * self.factor

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x.view(-1, 5, 8)))
        queries, keys, values = (self.split(y) for y in (self.query(h), self.key(h), h))
        mixed = self.scores(queries, keys).softmax(-1) @ values
        return self.last((h + mixed.transpose(1, 2).flatten(-2)).mean(1))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Products(Distances):
    """The squares are written as products."""

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        difference = queries[..., None, :] - keys[..., None, :, :]
        return -(difference * difference).mean(-1) * self.factor * queries.shape[-1]


def check(build):
    x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    batch = (x, torch.arange(12) % 4)
    return o1.coord_check(build, WIDTHS, optimizer="adam", lr=1e-2, batches=batch)


@pytest.mark.parametrize("network", [Distances, Products])
@pytest.mark.parametrize("power", [-0.5, 0.0, 0.5])
def test_squared_distances_are_divided_by_the_head_size(network, power):
    result = check(lambda width: network(width, power))
    if not power:
        assert result.passed, str(result)
        return
    assert result.verdict == "FAIL", str(result)
    code = "growing-activations" if power > 0 else "shrinking-output"
    assert code_of(result.causes[0]) == code
    assert "sum of products" in result.causes[0]


class OwnNorm(nn.Module):
    """A norm that is written with a sum of squares; its sum may have any factor."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        length = (h.square().sum(-1, keepdim=True) / self.width**0.5 + 1e-6).sqrt()
        return self.last(torch.relu(self.second(h / length * self.width**0.25)))


def test_the_factor_of_a_sum_whose_root_divides_is_not_judged():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    batch = (x, torch.arange(64) % 4)
    result = o1.coord_check(OwnNorm, WIDTHS, optimizer="adam", lr=1e-2, batches=batch)
    assert result.passed, str(result)
