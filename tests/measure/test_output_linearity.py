"""Layers of users' classes whose output is not proportional to their tensors."""

import pytest
import torch
from support.check_subjects import Net, Subject
from torch import Tensor, nn
from torch.nn import functional

from orderone.measure.output_linearity import nonlinear_layers

X = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))


class Gate(nn.Linear):
    """A Linear that returns sigmoids of its largest product, as the router of Llama 4."""

    def forward(self, input: Tensor) -> Tensor:
        products = super().forward(input)
        largest = products >= products.amax(-1, keepdim=True)
        return torch.sigmoid(products.masked_fill(~largest, -torch.inf))


class OwnLinear(nn.Module):
    def __init__(self, fan_in: int, fan_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_out, fan_in) * fan_in**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class OwnTanh(OwnLinear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(4 * super().forward(x))


class Once(OwnLinear):
    """It refuses a second call on one input."""

    seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x is self.seen:
            raise RuntimeError("called twice")
        self.seen = x
        return super().forward(x)


@pytest.mark.parametrize(
    ("layer", "found"),
    [(nn.Linear, False), (OwnLinear, False), (OwnTanh, True), (Gate, True), (Once, False)],
)
def test_twice_the_tensors_must_give_twice_the_output(layer, found):
    model = nn.Sequential(nn.Linear(32, 16), layer(16, 8))
    before = [p.detach().clone() for p in model.parameters()]
    assert nonlinear_layers(model, X) == ({"1"} if found else set())
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
    assert not model[1]._forward_hooks


def test_the_output_of_a_gate_is_not_compared_with_that_of_a_readout():
    class Gated(Net):
        def __init__(self, width: int):
            super().__init__(width)
            self.gate = Gate(width, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.inp(x))
            gates = self.gate(hidden).sum(-1, keepdim=True)
            return self.out(torch.relu(self.hid(hidden)) * gates)

    check = Subject(Gated).check(seeds=2)
    assert check.passed, str(check)
