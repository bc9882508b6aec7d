"""Matrices that read several outputs side by side: features of the input, or two widths."""

import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.core.errors import code_of

X = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))


class Beside(nn.Module):
    """Every layer reads the input again, as in PointNet++: no fan-in is a multiple of a width."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(5, width)
        self.hid = nn.Linear(width + 5, 2 * width)
        self.out = nn.Linear(2 * width + 5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inp(x))
        h = torch.relu(self.hid(torch.cat((h, x), -1)))
        return self.out(torch.cat((h, x), -1))


class TwoWidths(nn.Module):
    """One of two widths side by side grows more slowly."""

    def __init__(self, width: int):
        super().__init__()
        narrow = 8 + width // 8
        self.wide = nn.Linear(5, width)
        self.narrow = nn.Linear(5, narrow)
        self.hid = nn.Linear(width + narrow, width)
        self.out = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat((torch.relu(self.wide(x)), self.narrow(x)), -1)
        return self.out(torch.relu(self.hid(h)))


class Dots(nn.Module):
    """A table of vectors, and their products with the features beside them (as in DLRM)."""

    def __init__(self, width: int):
        super().__init__()
        self.table = nn.Embedding(20, width)
        self.inp = nn.Linear(5, width)
        self.hid = nn.Linear(width + 5, 2 * width)
        self.out = nn.Linear(2 * width, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table((x[:, 0] > 0).long()) + torch.relu(self.inp(x))
        return self.out(torch.relu(self.hid(torch.cat((h, x), -1))))


CASES = {
    Beside: {"inp": 1, "hid": 37 / 133, "out": 69 / 261},
    TwoWidths: {"wide": 1, "narrow": 1, "hid": 44 / 152, "out": 32 / 128},
    Dots: {"table": 1, "inp": 1, "hid": 37 / 133, "out": 64 / 256},
}


@pytest.mark.parametrize("inputs", [None, X], ids=["shapes", "traced"])
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_rates_fall_with_the_whole_fan_in(build, inputs):
    plan = o1.plan(build(128), base=build(32), lr=1.0, inputs=inputs)
    for layer, rate in CASES[build].items():
        assert plan[f"{layer}.weight"].lr == pytest.approx(rate, rel=1e-9)
    assert "32 -> 128" in plan.headline


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_their_check_passes_and_fails_without_the_rule(build):
    batches = (X, (X.sum(-1) > 0).long())
    arguments = {"widths": [64, 128, 256, 512], "lr": 1e-2, "batches": batches}
    assert o1.coord_check(build, **arguments).verdict == "PASS"
    assert o1.coord_check(build, rule="standard", **arguments).verdict == "FAIL"


def test_more_input_features_are_no_width():
    """The data differ between base and target, as the number of classes may."""

    def build(width: int, features: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 2))

    plan = o1.plan(build(128, 9), base=build(32, 5), lr=1.0)
    assert plan["0.weight"].lr == 1.0
    assert [code_of(note) for note in plan.notes] == ["input-size"]
