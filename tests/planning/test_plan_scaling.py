"""The work of a plan grows like the number of tensors, not like its square."""

import cProfile
import pstats
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.observe.trace import trace
from orderone.planning.initial import Initial, pooled

BATCH = torch.zeros(2, 8)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(self.norm(x))


class Deep(nn.Module):
    """Residual blocks in a list of a submodule, as in most Transformers."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.inputs = nn.Linear(8, width)
        self.body = nn.Module()
        self.body.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.readout = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        layers = self.body.layers
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            x = layer(x)
        return self.readout(x)


class Mixtures(nn.Module):
    """Two mixtures of experts with a soft router."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.inputs = nn.Linear(8, width)
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(2))
        self.experts = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(experts)) for _ in range(2)
        )
        self.readout = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        for router, experts in zip(self.routers, self.experts, strict=True):
            weights = router(x).softmax(-1)
            assert isinstance(experts, nn.ModuleList)
            x = x + sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(experts))
        return self.readout(x)


def calls(work: Callable[[], object]) -> int:
    """Return the number of function calls, which does not depend on the load of the machine."""
    profile = cProfile.Profile()
    profile.enable()
    work()
    profile.disable()
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def plan_of_layers(depth: int, base_depth: int) -> Callable[[], object]:
    model = Deep(16, depth)
    base = Deep(8, base_depth)
    return lambda: o1.plan(model, base=base, lr=1e-2)


def plan_of_experts(experts: int) -> Callable[[], object]:
    model = Mixtures(16, experts)
    base = Mixtures(8, experts)
    return lambda: o1.plan(model, base=base, lr=1e-2)


@pytest.mark.parametrize(
    "work",
    [
        lambda n: plan_of_layers(n, n),
        lambda n: plan_of_layers(n, 4),
        lambda n: plan_of_experts(n // 2),
    ],
    ids=["layers", "deeper than the base", "experts"],
)
def test_four_times_as_many_tensors_take_four_times_the_calls(
    work: Callable[[int], Callable[[], object]],
) -> None:
    work(4)()  # what is loaded and cached at the first call
    few = calls(work(60))
    many = calls(work(240))
    assert many < 4.2 * few


def test_norms_of_many_layers_are_followed_back_once() -> None:
    found = trace(Deep(8, 160), BATCH).normalized
    layers = {f"body.layers.{k}.up.weight" for k in range(159)}  # no norm follows the last one
    assert found == layers | {"inputs.weight"}
    few = calls(lambda: trace(Deep(8, 40), BATCH))
    many = calls(lambda: trace(Deep(8, 160), BATCH))
    assert many < 4.2 * few


def test_layers_of_similar_sizes_are_averaged() -> None:
    sizes = [0.02, 0.5, 0.0201, 0.0199, 0.51]
    values = {f"layers.{k}.weight": Initial(rms) for k, rms in enumerate(sizes)}
    values["layers.5.weight"] = Initial(0.02, 0.02)  # a constant is no random size
    averaged = pooled(values, dict.fromkeys(values, 10_000))
    similar = [0.02, 0.0201, 0.0199]
    expected = (sum(rms * rms for rms in similar) / 3) ** 0.5
    assert averaged["layers.0.weight"].rms == expected
    assert averaged["layers.2.weight"].rms == expected
    assert averaged["layers.1.weight"].rms == pytest.approx((0.5**2 / 2 + 0.51**2 / 2) ** 0.5)
    assert averaged["layers.5.weight"] == Initial(0.02, 0.02)


def test_a_size_that_is_not_finite_stays_as_it_is() -> None:
    values = {f"layers.{k}.weight": Initial(rms) for k, rms in enumerate([0.02, float("inf")])}
    values["layers.2.weight"] = Initial(float("nan"))
    averaged = pooled(values, dict.fromkeys(values, 100))
    assert averaged["layers.0.weight"].rms == 0.02
    assert averaged["layers.1.weight"].rms == float("inf")
    assert averaged["layers.2.weight"].rms != averaged["layers.2.weight"].rms
