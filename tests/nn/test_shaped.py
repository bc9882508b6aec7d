"""Shaped activations as modules: the theory's functions, gains, replacement in a model and back."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orderone.nn import ShapedActivation, ShapedReLU, shape_activations
from orderone.theory import limits
from orderone.theory.limits.shaped import SMOOTH

NOT_A_MODEL: Any = "net"
X = torch.linspace(-4, 4, 101, dtype=torch.float64)


def test_modules_are_the_functions_of_theory():
    relu = limits.ShapedReLU(0.3, -1.0)
    module = ShapedReLU.at(100, 0.3, -1.0)
    torch.testing.assert_close(module(X), relu.at(100)(X))
    assert module.gain**2 == pytest.approx(relu.normalizer(100))
    smooth = limits.ShapedSmooth("tanh", 1.5)
    module = ShapedActivation(torch.tanh, smooth.scale(100))
    torch.testing.assert_close(module(X), smooth.at(100)(X))
    assert module.gain**2 == pytest.approx(smooth.normalizer(100), rel=1e-6)
    torch.testing.assert_close(ShapedReLU()(X), X.relu())


@pytest.mark.parametrize(
    "phi", [nn.GELU(), nn.SiLU(), nn.Softplus(), nn.Sigmoid(), torch.sin, lambda x: 3 * x + x**2 + 1]
)
def test_any_smooth_function_is_normalised(phi):
    module = ShapedActivation(phi, 1e4)
    torch.testing.assert_close(module(X), X, atol=2e-3, rtol=0)
    assert module.gain == pytest.approx(1, abs=1e-3)


def test_gradients_flow_and_scripts_of_training_work():
    for module in (ShapedReLU(1.0, 0.5), ShapedActivation(torch.tanh, 2.0)):
        assert torch.autograd.gradcheck(module, X[[3, 20, 70, 90]].clone().requires_grad_())
        copy.deepcopy(module)(X)


def model() -> Any:
    return nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Tanh(), nn.LeakyReLU(0.2)
    )


def test_a_model_is_shaped_in_place_and_put_back():
    m = model().eval()
    originals, x = dict(m.named_modules()), torch.randn(3, 4)
    before, keys = m(x), set(m.state_dict())
    shaping = shape_activations(m, depth=16, width=64)
    assert set(shaping.replaced) == {"1", "2.1", "3", "4"}
    assert shaping.strength == 0.25
    assert (m[1].plus, m[1].minus) == (1.0, 0.75)
    assert m[3].scale == 4.0
    assert not m[1].training
    assert set(m.state_dict()) == keys
    assert not torch.allclose(m(x), before)
    shaping.undo()
    shaping.undo()
    assert all(originals[name] is module for name, module in m.named_modules())
    torch.testing.assert_close(m(x), before)
    with shape_activations(m, width=100, p=0.25, c_minus=-2.0):
        assert m[1].minus == pytest.approx(1 - 2 / 100**0.25)
    assert isinstance(m[1], nn.ReLU)


def test_shared_modules():
    act = nn.ReLU()
    m = nn.Sequential(nn.Linear(2, 2), act, nn.Linear(2, 2), act)
    with shape_activations(m, depth=4):
        assert isinstance(m[1], ShapedReLU)
        assert isinstance(m[3], ShapedReLU)
    assert m[1] is act
    assert m[3] is act


def test_a_shaped_network_keeps_its_inputs_apart():
    """What shaping is for: correlation of two inputs after 100 layers, plain and shaped."""
    torch.manual_seed(0)
    width, depth, x = 256, 100, torch.randn(2, 256)
    layers = [module for _ in range(depth) for module in (nn.Linear(width, width, bias=False), nn.ReLU())]
    net: Any = nn.Sequential(*layers)

    def correlation(gain: float) -> float:
        for layer in net[::2]:
            nn.init.normal_(layer.weight, std=gain / width**0.5)
        with torch.no_grad():
            return float(torch.cosine_similarity(*net(x), dim=0))

    assert correlation(2**0.5) > 0.99
    with shape_activations(net, depth=depth):
        assert correlation(net[1].gain) < 0.8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shape_activations(nn.Linear(2, 2), depth=3), "expected activation modules.*write nn.ReLU"),
        (lambda: shape_activations(nn.ReLU(), depth=3), "model: expected a network that holds activations"),
        (lambda: shape_activations(NOT_A_MODEL, depth=3), "model: expected a Module"),
        (lambda: shape_activations(model()), "depth, width: expected depth"),
        (lambda: shape_activations(model(), depth=0), "depth: expected a whole number"),
        (lambda: shape_activations(model(), width=4, p=-1), "p: expected a finite number of at least 0"),
        (lambda: shape_activations(nn.Sequential(ShapedReLU(), nn.ReLU()), depth=2), "undo the first shaping"),
        (lambda: ShapedActivation(NOT_A_MODEL, 1.0), "phi: expected a function or module"),
        (lambda: ShapedActivation(torch.tanh, 0), "scale: expected a number other than 0"),
        (lambda: ShapedActivation(torch.cos, 1.0), "phi: expected a slope other than 0 at 0"),
        (lambda: ShapedReLU(NOT_A_MODEL), "plus: expected a finite number"),
        (lambda: ShapedReLU.at(0), "size: expected a finite number above 0"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_theory_objects_refuse_and_accept():
    assert limits.ShapedReLU(1.0, 1.0).drift == 0
    with pytest.raises(ValueError, match="width: expected a whole number"):
        limits.ShapedReLU().slopes(0)
    with pytest.raises(ValueError, match="both zero"):
        limits.ShapedReLU(-1.0, -1.0).normalizer(5, 0)
    exact = limits.ShapedSmooth(lambda x: x + 0.7 * x**2 / 2 - 1.3 * x**3 / 6).derivatives
    assert exact == pytest.approx((0.7, -1.3), abs=1e-6)
    for name, (function, second, third) in SMOOTH.items():
        assert limits.ShapedSmooth(name).derivatives == (second, third)
        assert limits.ShapedSmooth(getattr(np, function)).derivatives == pytest.approx((second, third), abs=1e-6)
