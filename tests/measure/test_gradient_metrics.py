"""Gradient metrics against closed forms of linear dropout networks and against loss.backward();
what they must not be."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from orderone.measure.gradient_metrics import QUANTITIES, gradient_metrics

SW2, SB2 = 0.5, 0.1  # the variances of S1 figure 2


def linear(fan_in: int, fan_out: int, sw2: float = SW2) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out)
    nn.init.normal_(layer.weight, std=(sw2 / fan_in) ** 0.5)
    nn.init.normal_(layer.bias, std=SB2**0.5)
    return layer


def dropout_network(width: int, depth: int, keep: float):
    """S1 (1) with phi(z) = z."""
    return lambda: nn.Sequential(
        *(m for _ in range(depth) for m in (nn.Dropout(1 - keep), linear(width, width)))
    )


def two_inputs(width: int, q0: float, q_ab0: float) -> tuple[Tensor, Tensor]:
    """Two inputs of mean square q0 with mean product q_ab0."""
    u, v = (
        torch.linalg.qr(torch.randn(width, 2, generator=torch.Generator().manual_seed(0)))[0].T
        * width**0.5
    )
    c = q_ab0 / q0
    return q0**0.5 * u, q0**0.5 * (c * u + (1 - c**2) ** 0.5 * v)


def general_form(depth: int, keep: float, q0: float, q_ab0: float) -> tuple[np.ndarray, np.ndarray]:
    """g_aa^l and g_ab^l, l = 1 ... L, for infinite width and any input: erratum S1.3."""
    chi, q, q_ab = SW2 / keep, [q0], [q_ab0]
    for _ in range(depth):
        q.append(chi * q[-1] + SB2)
        q_ab.append(SW2 * q_ab[-1] + SB2)

    def single(k: int) -> float:
        return 4 * chi**k * (q[depth] + sum(chi**j * q[depth - j] for j in range(1, k + 1)) / keep)

    def pair(k: int) -> float:
        return (
            4
            * SW2**k
            * (q_ab[depth] + sum((SW2 / keep**2) ** j * q_ab[depth - j] for j in range(1, k + 1)))
        )

    layers = range(1, depth + 1)
    g_aa = np.array([q[layer - 1] / keep * single(depth - layer) for layer in layers])
    return g_aa, np.array([q_ab[layer - 1] * pair(depth - layer) for layer in layers])


def last_layer_at_finite_width(width: int, depth: int, keep: float, q0: float) -> float:
    """g_aa^L = 4 E[A (sw2 A + sb2)] exactly, A = 1/N sum_j (p_j z_j / rho)^2, for inputs of
    +-sqrt(q0).

    Given the layer below, the z_j are independent normals of variance s = sw2 A + sb2; so E A and E
    A^2 recur.
    """
    A, A2 = q0 / keep, q0**2 * (1 / keep**2 + (1 / keep**3 - 1 / keep**2) / width)
    for _ in range(depth - 1):
        s, s2 = SW2 * A + SB2, SW2**2 * A2 + 2 * SW2 * SB2 * A + SB2**2
        A, A2 = s / keep, s2 * (1 / keep**2 + (3 / keep**3 - 1 / keep**2) / width)
    return 4 * (SW2 * A2 + SB2 * A)


def wide(frame: pd.DataFrame) -> Any:
    """Rows are layers; columns (mean | std | se, quantity)."""
    return frame.pivot(index="layer", columns="quantity", values=["mean", "std", "se"])


@pytest.mark.parametrize("keep", [0.9, 0.7])
def test_linear_dropout_networks_follow_the_closed_form(keep):
    width, depth = 128, 8
    a, b = two_inputs(width, 1.0, 0.6)
    found = wide(gradient_metrics(dropout_network(width, depth, keep), a, b, instances=512))
    fixed_point = SB2 / (1 - SW2 / keep), SB2 / (1 - SW2)
    for quantity, law, printed in zip(
        ["g_aa", "g_ab"],
        general_form(depth, keep, 1.0, 0.6),
        general_form(depth, keep, *fixed_point),
        strict=True,
    ):
        mean, se = found["mean", quantity], found["se", quantity]
        assert np.all(abs(mean - law) < 4 * se + 10 / width * law)
        # S1 (12) takes every layer to be at the fixed point: with this input it must not fit
        # (erratum S1.3)
        assert abs(mean[1] - printed[0]) > 8 * se[1] + 10 / width * printed[0]


def test_a_narrow_network_has_the_last_gradient_of_its_own_width():
    width, depth, keep = 16, 4, 0.7
    signs = torch.randn(width, generator=torch.Generator().manual_seed(1)).sign()
    found = wide(
        gradient_metrics(dropout_network(width, depth, keep), signs, -signs, instances=1500)
    ).loc[depth]
    exact = last_layer_at_finite_width(width, depth, keep, 1.0)
    assert abs(found["mean", "g_aa"] - exact) < 4 * found["se", "g_aa"]
    assert (
        abs(found["mean", "g_aa"] - general_form(depth, keep, 1.0, -1.0)[0][-1])
        > 4 * found["se", "g_aa"]
    )


def test_absolute_values_are_no_estimate_of_the_signed_mean():
    """Erratum S1.4: the first layers of a deep network at keep rate .7, averaged over 16 pairs of
    masks a network."""
    width, depth, keep = 128, 16, 0.7
    a, b = (x.expand(16, -1) for x in two_inputs(width, 0.35, 0.2))
    found = wide(gradient_metrics(dropout_network(width, depth, keep), a, b, instances=64))
    law = general_form(depth, keep, 0.35, 0.2)[1]
    allowed = 4 * found["se", "g_ab"] + 10 / width * law
    assert np.all(abs(found["mean", "g_ab"] - law) < allowed)
    assert np.all((abs(found["mean", "abs_g_ab"] - law) > allowed)[:8])
    assert found["mean", "abs_g_ab"][1] > 5 * law[0]
    assert found["mean", "abs_g_ab"][depth] == pytest.approx(found["mean", "g_ab"][depth], rel=0.01)


class FixedMask(nn.Module):
    """A dropout mask that is drawn with the weights, so that a loop can repeat it."""

    mask: Tensor

    def __init__(self, width: int, keep: float):
        super().__init__()
        self.register_buffer("mask", torch.bernoulli(torch.full((width,), keep)) / keep)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


class Branching(nn.Module):
    """Control flow on values, which vmap refuses."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() < 1e9 else -x


def convolutions() -> nn.Module:
    body = nn.Conv1d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv1d(4, 3, 3), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (2, 6)), *body, nn.Dropout(0.0), nn.Linear(6, 5))


NETWORKS = {
    "tanh": lambda: nn.Sequential(
        linear(12, 20), nn.Tanh(), nn.Dropout(0.0), linear(20, 20), nn.Tanh(), linear(20, 3)
    ),
    "masks": lambda: nn.Sequential(
        FixedMask(12, 0.7), linear(12, 9), nn.ReLU(), FixedMask(9, 0.7), linear(9, 4)
    ),
    "convolutions": convolutions,
}


def by_backward(network: nn.Module, a: Tensor, b: Tensor) -> np.ndarray:
    def gradients(x: Tensor) -> list[Tensor]:
        network.zero_grad()
        network(x[None]).square().sum().backward()
        layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv1d)]
        return [m.weight.grad.clone() for m in layers if m.weight.grad is not None]

    rows = []
    for u, v in zip(gradients(a), gradients(b), strict=True):
        g_ab = (u * v).sum() / u.numel()
        rows.append([u.pow(2).sum() / u.numel(), g_ab, abs(g_ab), (u * v).abs().sum() / u.numel()])
    return np.array(rows, float)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [None, 1, 4, 7])
def test_a_plain_loop_with_backward_gives_the_same_numbers(name, batch):
    built: list[nn.Module] = []

    def build() -> nn.Module:
        built.append(NETWORKS[name]())
        return built[-1]

    a, b = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(2))
    frame = gradient_metrics(build, a, b, instances=5, batch=batch)
    loop = np.array(
        [np.mean([by_backward(n, u, v) for u, v in zip(a, b, strict=True)], 0) for n in built[-5:]]
    )
    np.testing.assert_allclose(frame["mean"], loop.mean(0).ravel(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(frame["std"], loop.std(0, ddof=1).ravel(), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(frame["se"], frame["std"] / 5**0.5)


def test_networks_that_vmap_refuses_are_measured_one_by_one():
    def branching(keep: float):
        return lambda: nn.Sequential(Branching(), *dropout_network(10, 3, keep)())

    a, b = two_inputs(10, 1.0, 0.6)
    with pytest.warns(UserWarning, match=r"control flow.*\[vmap-failed\]"):
        one_by_one = gradient_metrics(branching(1.0), a, b, instances=4, batch=3)
    together = gradient_metrics(dropout_network(10, 3, 1.0), a, b, instances=4)
    np.testing.assert_allclose(one_by_one[["mean", "std"]], together[["mean", "std"]], rtol=1e-5)

    with pytest.warns(UserWarning, match=r"\[vmap-failed\]"):
        one_by_one = gradient_metrics(branching(0.7), a, b, instances=300)
    together = gradient_metrics(dropout_network(10, 3, 0.7), a, b, instances=300, seed=1)
    assert np.all(
        abs(one_by_one["mean"] - together["mean"]) < 4 * np.hypot(one_by_one["se"], together["se"])
    )


def test_two_passes_share_their_weights_and_not_their_masks():
    x = torch.ones(32)
    same = wide(gradient_metrics(dropout_network(32, 3, 1.0), x, x, instances=8))["mean"]
    assert np.allclose(same.T, same["g_aa"], rtol=1e-6)
    masked = wide(gradient_metrics(dropout_network(32, 3, 0.5), x, x, instances=200))["mean"]
    assert np.all(masked["g_ab"] < 0.6 * masked["g_aa"])


def test_every_network_and_every_pair_has_fresh_masks():
    """With weights that hardly differ, only masks make g_aa vary; 64 pairs of a network average 64
    masks."""

    def build() -> nn.Module:
        layer = nn.Linear(8, 1, bias=False)
        nn.init.normal_(layer.weight, mean=1.0, std=1e-6)
        return nn.Sequential(nn.Dropout(0.5), layer)

    x = torch.ones(8)
    one = wide(gradient_metrics(build, x, x, instances=300))["std", "g_aa"][1]
    many = wide(gradient_metrics(build, x.expand(64, -1), x.expand(64, -1), instances=300))[
        "std", "g_aa"
    ][1]
    assert one > 1
    assert one / many == pytest.approx(8, rel=0.2)


def test_gradients_too_small_to_be_squared_in_single_precision():
    width, depth = 32, 180
    x = torch.ones(width)
    found = wide(gradient_metrics(dropout_network(width, depth, 1.0), x, x, instances=8))[
        "mean", "g_aa"
    ]
    assert 0 < found[1] < float(torch.finfo(torch.float32).smallest_normal) ** 1.2
    assert all(found[deeper] < found[later] for deeper, later in pairwise(range(1, depth, 30)))


class Backwards(nn.Module):
    """Layers in another order than their calls, one that is never called, and a shared weight."""

    def __init__(self):
        super().__init__()
        self.head, self.unused, self.second, self.first = (nn.Linear(4, 4) for _ in range(4))
        self.table, self.again = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.again.weight = self.first.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.again(self.second(self.first(self.table(tokens)))))


def test_layers_come_in_the_order_of_the_forward_pass():
    frame = gradient_metrics(Backwards, [1, 2], [3, 3], instances=2, loss=lambda y: y.pow(4).mean())
    assert list(frame.columns) == ["layer", "module", "quantity", "mean", "std", "se"]
    assert list(frame["module"]) == [
        name for name in ("first", "second", "head") for _ in QUANTITIES
    ]
    assert list(frame["layer"]) == [1] * 4 + [2] * 4 + [3] * 4
    assert list(frame["quantity"]) == [*QUANTITIES] * 3
    assert np.all(frame[frame["quantity"] != "g_ab"]["mean"] > 0)


def test_the_seed_decides_and_nothing_leaks():
    def measure(seed: int) -> pd.DataFrame:
        return gradient_metrics(
            dropout_network(6, 2, 0.5), np.ones(6), np.ones(6), instances=5, seed=seed
        )

    state = torch.get_rng_state()
    first = measure(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    pd.testing.assert_frame_equal(first, measure(3))
    assert not np.allclose(first["mean"], measure(4)["mean"])


FIXED = nn.Linear(4, 4)
X = torch.ones(4)


def seeded() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def of_any_width() -> nn.Module:
    return nn.Sequential(nn.Linear(4, int(torch.randint(1, 10**6, ()))))


@pytest.mark.parametrize(
    ("build", "a", "b", "options", "message"),
    [
        (FIXED, X, X, {}, r"build: .*got Linear.*\[wrong-type\]"),
        ("net", X, X, {}, r"build: .*got 'net'.*\[wrong-type\]"),
        (lambda: 3, X, X, {}, r"build\(\): .*got 3.*\[wrong-type\]"),
        (lambda: FIXED, X, X, {}, r"build: .*\[equal-networks\]"),
        (seeded, X, X, {}, r"build: .*\[equal-networks\]"),
        (of_any_width, X, X, {}, r"build: .*one architecture.*\[unsupported-networks\]"),
        (nn.Tanh, X, X, {}, r"build: .*Linear.*Tanh.*\[unsupported-networks\]"),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            X,
            X,
            {},
            r"build: .*parametrization.*\[unsupported-networks\]",
        ),
        (seeded, X, torch.ones(5), {}, r"inputs_b: .*\(4,\) and \(5,\)"),
        (seeded, torch.ones(0), torch.ones(0), {}, r"inputs_b: .*\(0,\) and \(0,\)"),
        (seeded, torch.ones(()), torch.ones(()), {}, r"inputs_b: .*\(\) and \(\)"),
        (seeded, "a", X, {}, r"inputs_b: .*\[wrong-type\]"),
        (seeded, X, X, {"loss": lambda y: y}, r"loss: .*one number.*\[wrong-type\]"),
        (seeded, X, X, {"loss": "mse"}, r"loss: .*got 'mse'.*\[wrong-type\]"),
        (seeded, X, X, {"instances": 1}, "instances: .* 1"),
        (seeded, X, X, {"seed": -1}, "seed: .* -1"),
        (lambda: nn.Linear(4, 4), X, X, {"batch": 0}, "batch: .* 0"),
        (lambda: nn.LSTM(4, 4), X, X, {}, r"outputs: .*\[wrong-type\]"),
    ],
)
def test_wrong_arguments(build, a, b, options, message):
    with pytest.raises(ValueError, match=message):
        gradient_metrics(build, a, b, **options)
