"""Powers of the width in the forward code that no learning rate and no measured size shows."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.core.errors import code_of
from orderone.measure.judge.verdict import Verdict
from orderone.observe.quantities import Quantity
from orderone.observe.trace import trace

WIDTHS = (32, 64, 128, 256)
BATCH = (torch.randn(24, 12, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 6)


class Net(nn.Module):
    """An MLP with a factor n^power at one place."""

    def __init__(self, width: int, place: str = "", power: float = 0.0):
        super().__init__()
        self.place = place
        self.factor = (width / WIDTHS[0]) ** power
        self.first = nn.Linear(12, width)
        self.hidden = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.gain = nn.Parameter(torch.ones(width))
        self.last = nn.Linear(width, 6)

    def at(self, place: str) -> float:
        return self.factor if place == self.place else 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = self.hidden(x)
        if self.place in ("norm", "rms"):
            y = y * self.factor
            norm = (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
            y = self.norm(y) if self.place == "norm" else y * norm
        branch = torch.relu(y) * self.at("branch")
        x = x + branch * (self.gain * self.at("gain"))
        gate = 1 + torch.sigmoid(x) * self.at("gate")
        x = torch.relu(x * gate) * torch.exp(-(x.square()) * self.at("exponent"))
        return self.last(x)


def build(place: str, power: float):
    def make(width: int):
        model = Net(width, place, power)
        growth = width / WIDTHS[0]
        with torch.no_grad():
            model.last.weight *= growth**-0.5
        matrices = [model.hidden.weight, model.last.weight]
        others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        groups = [{"params": matrices, "lr": 3e-3 / growth}, {"params": others}]
        return model, torch.optim.Adam(groups, lr=3e-3, eps=1e-12)

    return make


def check(place: str, power: float) -> o1.measure.Check:
    return o1.coord_check(build(place, power), WIDTHS, optimizer="adam", batches=BATCH, seeds=2)


@pytest.mark.parametrize("power", [-0.5, 0.5])
@pytest.mark.parametrize("place", ["branch", "gain", "gate", "exponent"])
def test_a_factor_that_no_tensor_compensates_fails(place, power):
    result = check(place, power)
    assert result.verdict == Verdict.FAIL
    code = "growing-activations" if power > 0 else "shrinking-output"
    assert code_of(result.causes[0]) == code
    failed = [line for line in result.judgements if line.quantity == Quantity.MULTIPLIER]
    assert [round(line.multiplier, 3) for line in failed] == [power]


@pytest.mark.parametrize("power", [-1.0, -0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("place", ["norm", "rms"])
def test_a_factor_in_front_of_a_norm_alone_has_no_effect(place, power):
    assert check(place, power).passed


class Normalized(Net):
    """A nonlinearity that makes its output small, with the factor that undoes it."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = functional.normalize(torch.relu(self.hidden(x)), dim=-1) * self.factor
        return self.last(x + y)


@pytest.mark.parametrize(("power", "verdict"), [(0.5, "PASS"), (0.0, "FAIL"), (1.0, "FAIL")])
def test_a_factor_that_undoes_a_small_output_passes(power, verdict):
    def make(width):
        model = Normalized(width, "", power)
        model.factor *= WIDTHS[0] ** 0.5
        growth = width / WIDTHS[0]
        with torch.no_grad():
            model.last.weight *= growth**-0.5
        matrices = [model.hidden.weight, model.last.weight]
        others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
        groups = [{"params": matrices, "lr": 3e-3 / growth}, {"params": others}]
        return model, torch.optim.Adam(groups, lr=3e-3, eps=1e-12)

    result = o1.coord_check(make, WIDTHS, optimizer="adam", batches=BATCH, seeds=2)
    assert result.verdict == verdict


class Added(nn.Module):
    """The number of branches grows along with the width; each is divided by their number."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(12, width)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(width // 32))
        self.last = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch in self.branches:
            x = x + torch.relu(branch(x)) / len(self.branches)
        return self.last(x)


def test_branches_that_are_divided_by_their_growing_number_pass():
    result = o1.coord_check(Added, WIDTHS, optimizer="adam", lr=3e-3, batches=BATCH, seeds=2)
    assert result.passed


def test_the_trace_tells_what_fixes_the_size_of_a_term():
    terms = trace(Net(64, "branch", 1.0), BATCH[0]).terms
    [term] = [term for term in terms if term.value == 2]
    assert term.linear_in == ()
    assert term.near == ("hidden.weight",)
    assert term.others is not None
    assert term.size > 0


class Masked(nn.Module):
    """A view of the scaled activations is masked in place, as Megatron masks attention scores."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(12, width)
        self.last = nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        scaled = 0.5 * self.first(x)
        viewed = scaled.view(scaled.shape)
        viewed.masked_fill_(viewed > 10, 0.0)
        return self.last(viewed.softmax(-1))


def test_a_term_that_is_masked_in_place_is_traced():
    [term] = trace(Masked(64), BATCH[0]).terms
    assert term.value == 0.5
    assert term.linear_in == ("first.weight",)


class Gated(Net):
    """A branch behind a gate: squeeze and excitation, a gate that starts closed, one of 3 heads."""

    def __init__(self, width: int, place: str, power: float):
        super().__init__(width, place, power)
        self.closed = nn.Parameter(torch.zeros(1))
        self.small = nn.Linear(width, 4)
        self.second = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        y = torch.relu(self.hidden(x))
        x = x + y * self.at("squeezed") * torch.sigmoid(y.mean(-1, keepdim=True))
        x = x + self.closed * (torch.tanh(x) * self.at("closed"))
        head = self.second(torch.relu(self.small(x))) * self.at("head")
        return torch.cat([self.last(x), head, torch.tanh(x[:, :2])], -1)


def planned(network: type[Net], place: str = "", power: float = 0.0):
    """Return a function that builds a network that was planned without its factor."""

    def make(width: int):
        model = network(width, "", 0.0)
        plan = o1.plan(
            model, base=network(WIDTHS[0], "", 0.0), optimizer="adam", lr=3e-3, inputs=BATCH[0]
        )
        plan.apply()
        model.place = place
        model.factor = (width / WIDTHS[0]) ** power
        return model, plan.optimizer()

    return make


@pytest.mark.parametrize("power", [-0.5, 0.5])
@pytest.mark.parametrize("place", ["squeezed", "closed", "head"])
def test_a_factor_beside_a_gate_or_another_head_fails(place, power):
    result = o1.coord_check(
        planned(Gated, place, power), WIDTHS, optimizer="adam", batches=BATCH, seeds=2
    )
    assert result.verdict == Verdict.FAIL
    failed = [line for line in result.judgements if line.quantity == Quantity.MULTIPLIER]
    assert power in [round(line.multiplier, 3) for line in failed]


def test_gates_and_several_heads_pass():
    result = o1.coord_check(planned(Gated), WIDTHS, optimizer="adam", batches=BATCH, seeds=2)
    assert result.passed
