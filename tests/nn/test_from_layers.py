"""Kernels of theory against real networks, built from the same description, with gradients by
autograd."""

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import nn

from orderone.nn import from_layers, simulate_kernels
from orderone.theory import kernels
from orderone.theory.kernels import (
    Activation,
    AveragePool,
    Dense,
    Dropout,
    LayerNorm,
    Residual,
    RMSNorm,
    Sequential,
    inputs,
)

X = np.array([[1.0, 2, -1, 0.5], [0.3, -1, 2, 1], [1.1, 1.9, -1, 0.4]])
TOKENS = np.stack([X, X[::-1] * 0.7 + 0.2])

NETWORKS = {
    "dense, relu": (
        Sequential(Dense(2, 0.1), Activation("relu"), Dense(1.5, 0.2), Activation("relu"), Dense()),
        X,
    ),
    "erf, dropout": (
        Sequential(Dense(2, 0.1), Activation("erf"), Dropout(0.7), Dense(1.5, 0.2)),
        X,
    ),
    "gelu, residual": (
        Sequential(
            Dense(2, 0.1),
            Residual(Activation("gelu"), Dense(2, 0.2), scale=0.5),
            Activation("gelu"),
            Dense(),
        ),
        X,
    ),
    "norms": (
        Sequential(Dense(2), RMSNorm(0.1), Activation("relu"), LayerNorm(0.1), Dense(1.5, 0.2)),
        X,
    ),
    "tokens": (
        Sequential(
            Dense(2, 0.1), Activation("relu"), Dense(), Activation("erf"), AveragePool(), Dense()
        ),
        TOKENS,
    ),
    "ends in an activation": (
        Sequential(Dense(2, 0.1), Activation("tanh"), Dense(1, 0.1), Activation("relu")),
        X,
    ),
}


def deviations(simulated, kernel):
    """Return the deviation of each entry in standard errors, after an allowance of 1 / width for
    the effect of finite width."""
    for values, error, expected in (
        (simulated.nngp, simulated.nngp_error, kernel.nngp),
        (simulated.ntk, simulated.ntk_error, kernel.ntk),
    ):
        size = np.sqrt(expected.diagonal()[:, None] * expected.diagonal()[None, :])
        yield np.maximum(np.abs(values - expected) - size / 256, 0) / error


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_kernels_of_their_description(name):
    net, x = NETWORKS[name]
    simulated = simulate_kernels(net, x, width=256, networks=40, outputs=8, seed=1)
    for deviation in deviations(simulated, net(inputs(x))):
        assert deviation.max() < 4


def test_other_networks_have_other_kernels():
    """The comparison above is sharp enough to see a weight variance that is off by a tenth, or a
    missing dropout."""
    net, other = (
        Sequential(Dense(w, 0.1), Activation("erf"), Dropout(0.7), Dense(1.5)) for w in (2.0, 1.6)
    )
    without = Sequential(Dense(2.0, 0.1), Activation("erf"), Dense(1.5))
    simulated = simulate_kernels(net, X, width=256, networks=40, outputs=8, seed=1)
    for wrong in (other, without):
        assert max(deviation.max() for deviation in deviations(simulated, wrong(inputs(X)))) > 6


def test_a_description_becomes_a_module():
    net = Sequential(
        Dense(2, 0.1), Residual(Activation("relu"), Dense(), Dropout(0.9)), LayerNorm(1e-5), Dense()
    )
    model = from_layers(net, inputs=4, width=32, outputs=3)
    assert isinstance(model, nn.Module)
    assert model(torch.randn(5, 4)).shape == (5, 3)
    assert [tuple(p.shape) for p in model.parameters() if p.dim() == 2] == [
        (32, 4),
        (32, 32),
        (3, 32),
    ]
    loss = model(torch.randn(5, 4)).square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["relu", "erf", "gelu", "tanh", "sin"])
def test_gradients_of_activations_are_those_of_torch(name):
    theirs = {"gelu": nn.functional.gelu}.get(name) or getattr(torch, name)
    x = torch.linspace(-2, 2, 9, dtype=torch.float64, requires_grad=True)
    (model,) = from_layers(Activation(name), inputs=9)
    one, other = (torch.autograd.grad(f(x).sum(), x)[0] for f in (model, theirs))
    keep = x.detach() != 0  # relu has no derivative there
    assert torch.allclose(one[keep], other[keep])


def test_invalid_arguments_of_from_layers():
    class Unknown(kernels.Layer):
        def apply(self, kernel):
            return kernel

    with refuses("wrong-type", argument="net"):
        from_layers("relu", 3)  # type: ignore[arg-type]
    with refuses("wrong-type", argument="layer") as caught:
        from_layers(Unknown(), 3)
    assert "to_module.register" in str(caught.value)
    with refuses("invalid-argument", argument="width"):
        from_layers(Dense(), 3, width=0)
    with refuses("invalid-argument", argument="X"):
        simulate_kernels(Dense(), [[np.nan]])
    with refuses("invalid-argument", argument="networks"):
        simulate_kernels(Dense(), X, networks=1)
