"""Shaped activations as modules: the theory's functions, gains, replacement in a model and back."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refuses
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
    "phi",
    [nn.GELU(), nn.SiLU(), nn.Softplus(), nn.Sigmoid(), torch.sin, lambda x: 3 * x + x**2 + 1],
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
        nn.Linear(4, 4),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Linear(4, 4), nn.GELU()),
        nn.Tanh(),
        nn.LeakyReLU(0.2),
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
    """Shaping preserves differences: correlation of two inputs after 100 layers."""
    torch.manual_seed(0)
    width, depth, x = 256, 100, torch.randn(2, 256)
    layers = [
        module for _ in range(depth) for module in (nn.Linear(width, width, bias=False), nn.ReLU())
    ]
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
    ("call", "code", "argument", "words"),
    [
        (
            lambda: shape_activations(nn.Linear(2, 2), depth=3),
            "no-activations",
            "model",
            "",
        ),
        (
            lambda: shape_activations(nn.ReLU(), depth=3),
            "invalid-argument",
            "model",
            "",
        ),
        (lambda: shape_activations(NOT_A_MODEL, depth=3), "wrong-type", "model", ""),
        (lambda: shape_activations(model()), "invalid-argument", "depth", "depth, width"),
        (lambda: shape_activations(model(), depth=0), "invalid-argument", "depth", "a whole"),
        (
            lambda: shape_activations(model(), width=4, p=-1),
            "invalid-argument",
            "p",
            "least 0",
        ),
        (
            lambda: shape_activations(nn.Sequential(ShapedReLU(), nn.ReLU()), depth=2),
            "already-shaped",
            "model",
            "",
        ),
        (lambda: ShapedActivation(NOT_A_MODEL, 1.0), "invalid-argument", "phi", ""),
        (lambda: ShapedActivation(torch.tanh, 0), "invalid-argument", "scale", "than 0"),
        (lambda: ShapedActivation(torch.cos, 1.0), "no-shaped-form", "phi", "at 0"),
        (lambda: ShapedReLU(NOT_A_MODEL), "invalid-argument", "plus", ""),
        (lambda: ShapedReLU.at(0), "invalid-argument", "size", "above 0"),
    ],
)
def test_wrong_arguments(call, code, argument, words):
    with refuses(code, argument=argument) as caught:
        call()
    assert words in str(caught.value)


def test_shaped_activations_of_theory_validate_their_arguments():
    assert limits.ShapedReLU(1.0, 1.0).drift == 0
    with refuses("invalid-argument", argument="width"):
        limits.ShapedReLU().slopes(0)
    with refuses("invalid-argument", argument="c_plus"):
        limits.ShapedReLU(-1.0, -1.0).normalizer(5, 0)
    exact = limits.ShapedSmooth(lambda x: x + 0.7 * x**2 / 2 - 1.3 * x**3 / 6).derivatives
    assert exact == pytest.approx((0.7, -1.3), abs=1e-6)
    for name, (function, second, third) in SMOOTH.items():
        assert limits.ShapedSmooth(name).derivatives == (second, third)
        assert limits.ShapedSmooth(getattr(np, function)).derivatives == pytest.approx(
            (second, third), abs=1e-6
        )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "padding", [None, torch.tensor([[False, False, False], [False, False, True]])]
)
def test_fused_transformer_layers_use_the_shaped_activation(padding):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, nn.ReLU(), batch_first=True)
    net: Any = nn.TransformerEncoder(layer, 2)
    x = torch.randn(2, 3, 8)

    def out(training: bool) -> torch.Tensor:
        with torch.no_grad():
            y = net.train(training)(x, src_key_padding_mask=padding)
        return y if padding is None else y[~padding]

    plain, flags = out(False), (net.use_nested_tensor, net.layers[0].activation_relu_or_gelu)
    shaping = shape_activations(net, depth=4)
    torch.testing.assert_close(out(False), out(True), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(out(False), plain, atol=1e-2)
    shaping.undo()
    assert flags == (net.use_nested_tensor, net.layers[0].activation_relu_or_gelu)
    torch.testing.assert_close(out(False), plain)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_functions_that_are_attributes_of_modules_are_shaped(activation):
    torch.manual_seed(0)
    net: Any = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation, batch_first=True), 2
    )
    x = torch.randn(2, 3, 8)

    def out(training: bool = False) -> torch.Tensor:
        with torch.no_grad():
            return net.train(training)(x)

    plain, function, keys = out(), net.layers[0].activation, set(net.state_dict())
    shaping = shape_activations(net, depth=4)
    assert set(shaping.replaced) == {"layers.0.activation", "layers.1.activation"}
    kind = ShapedReLU if activation == "relu" else ShapedActivation
    assert isinstance(net.layers[1].activation, kind)
    assert set(net.state_dict()) == keys
    layer = net.layers[0]
    by_hand = layer.linear2(
        kind.at(4)(layer.linear1(x)) if kind is ShapedReLU else layer.activation(layer.linear1(x))
    )
    torch.testing.assert_close(layer._ff_block(x), by_hand)
    torch.testing.assert_close(out(), out(True), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(out(), plain, atol=1e-3)
    shaping.undo()
    assert net.layers[0].activation is function
    assert "activation" not in dict(net.layers[0].named_modules())
    torch.testing.assert_close(out(), plain)


class Holder(nn.Module):
    def __init__(self, **functions: Any):
        super().__init__()
        for name, function in functions.items():
            setattr(self, name, function)


def test_functions_with_settings_and_without_a_form():
    settings = {
        "act": partial(nn.functional.leaky_relu, negative_slope=0.1),
        "elu": partial(nn.functional.elu, alpha=3),
    }
    holder: Any = Holder(inner=Holder(**settings), gate=torch.sigmoid, loss=nn.functional.mse_loss)
    with shape_activations(holder, depth=4, keep=["gate"]) as shaping:
        assert set(shaping.replaced) == {"inner.act", "inner.elu"}
        assert holder.inner.elu.minus == 0.5
    assert holder.inner.act is settings["act"]
    with refuses("no-shaped-form", argument="model") as caught:
        shape_activations(Holder(f=nn.functional.softshrink), depth=4)
    assert "softshrink at 'f'" in str(caught.value)
    assert "keep=['f']" in str(caught.value)


@pytest.mark.parametrize("bent", [nn.ELU(0.3), nn.ELU(2.0), nn.Hardtanh(0.0, 6.0)])
@pytest.mark.parametrize(
    "smooth", [nn.ELU(), nn.CELU(0.3), nn.CELU(2.0), nn.Softplus(3.0), nn.Softsign()]
)
def test_shaped_activations_tend_to_the_identity(bent, smooth):
    """ELU with alpha != 1 has a kink at 0, CELU has none: by brute force, far in the limit, with
    gains by sampling."""
    net = nn.Sequential(bent, smooth)
    shape_activations(net, depth=10**8)
    assert isinstance(net[0], ShapedReLU)
    assert isinstance(net[1], ShapedActivation)
    for module in net:
        torch.testing.assert_close(module(X), X, atol=5e-3, rtol=0)
    shaped, x = ShapedActivation(smooth, 1.5), torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    moment = torch.trapezoid(shaped(x) ** 2 * torch.exp(-(x**2) / 2), x) / (2 * torch.pi) ** 0.5
    assert shaped.gain == pytest.approx(float(moment) ** -0.5, rel=1e-6)
    with refuses("no-shaped-form", argument="phi"):
        ShapedActivation(bent, 2.0)


def test_every_activation_is_replaced_or_refused():
    transformers = pytest.importorskip("transformers.activations")
    kinds = [nn.ELU(), nn.SELU(), nn.CELU(), nn.Hardtanh(), nn.Softsign(), nn.Hardswish()]
    kinds += [
        transformers.GELUActivation(),
        transformers.NewGELUActivation(),
        transformers.QuickGELUActivation(),
    ]
    m = nn.Sequential(*kinds)
    with shape_activations(m, depth=4):
        assert all(isinstance(module, ShapedReLU | ShapedActivation) for module in m)
        assert torch.isfinite(m(X)).all()
    assert list(m) == kinds
    m = nn.Sequential(nn.ReLU(), nn.PReLU(), nn.Sigmoid())
    with refuses("no-shaped-form", argument="model") as caught:
        shape_activations(m, depth=4)
    assert "PReLU at '1'" in str(caught.value)
    assert "keep=['1']" in str(caught.value)
    with shape_activations(m, depth=4, keep=["1", "2"]) as shaping:
        assert list(shaping.replaced) == ["0"]
    with refuses("unknown-name", argument="keep"):
        shape_activations(m, depth=4, keep="gate")  # type: ignore[arg-type]


def test_hooks_move_to_the_shaped_modules_and_back():
    m, seen = nn.Sequential(nn.Linear(2, 2), nn.GELU()), []
    handle = m[1].register_forward_hook(lambda module, args, out: seen.append((type(module), out)))
    with shape_activations(m, depth=4):
        out = m(torch.ones(2))
        assert [kind for kind, _ in seen] == [ShapedActivation]
        assert seen[0][1] is out
    m(torch.ones(2))
    assert seen[1][0] is nn.GELU
    handle.remove()
    m(torch.ones(2))
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "words"),
    [
        ({"depth": 10, "width": 0}, "invalid-argument", "width", ""),
        ({"depth": 10, "width": "x"}, "invalid-argument", "width", ""),
        ({"depth": 10, "p": 0.3}, "invalid-argument", "depth", "got depth"),
        ({"width": 10, "p": 0.7}, "invalid-argument", "p", "least 0"),
        ({"depth": 10**400}, "invalid-argument", "depth", "at most"),
    ],
)
def test_sizes_are_checked(arguments, code, argument, words):
    with refuses(code, argument=argument) as caught:
        shape_activations(model(), **arguments)
    assert words in str(caught.value)


def test_slopes_at_the_ends():
    ends = torch.tensor([-torch.inf, torch.inf])
    torch.testing.assert_close(ShapedReLU(1, 0.5)(ends), ends)
    torch.testing.assert_close(ShapedReLU(1, 0)(ends), ends.relu())
    torch.testing.assert_close(ShapedReLU(0, 1)(ends), -(-ends).relu())
    with refuses("invalid-argument", argument="plus"):
        _ = ShapedReLU(0, 0).gain
    with refuses("invalid-argument", argument="p"):
        ShapedReLU.at(1e300, p=2)


@pytest.mark.parametrize("phi", [lambda x: x + 0.3 * np.abs(x), lambda x: x / (1 + np.abs(x))])
def test_kinks_at_the_start_are_refused(phi):
    with refuses("no-shaped-form", argument="phi"):
        _ = limits.ShapedSmooth(phi).derivatives
    with refuses("no-shaped-form", argument="phi"):
        limits.CovarianceSDE("shaped-smooth", phi=phi)


@pytest.mark.parametrize("k", [0.1, 10.0, 50.0])
def test_derivatives_of_steep_and_flat_functions(k):
    assert limits.ShapedSmooth(lambda x: np.tanh(k * x) / k).derivatives == pytest.approx(
        (0, -2 * k**2), rel=1e-6
    )
    assert limits.ShapedSmooth(lambda x: torch.expm1(k * x) / k).derivatives == pytest.approx(
        (k, k**2), rel=1e-6
    )


@pytest.mark.parametrize("phi", [np.tanh, torch.tanh, lambda x: np.tanh(np.asarray(x)), "tanh"])
def test_functions_of_arrays_and_tensors_are_accepted(phi):
    shaped = limits.ShapedSmooth(phi)
    torch.testing.assert_close(shaped.at(16)(X), 4 * torch.tanh(X / 4))
    np.testing.assert_allclose(shaped.at(16)(X.numpy()), 4 * np.tanh(X.numpy() / 4))
    assert limits.CovarianceSDE("shaped-smooth", phi=phi).drift.beta == pytest.approx(-1)  # type: ignore[union-attr]


@pytest.mark.parametrize("s", [0.01, 0.05, 1.0, 30.0])
def test_gains_at_small_scales(s):
    x = np.linspace(0, 12, 4_000_001)
    exact = np.trapezoid(np.exp(-(x**2) / 2) * (s * np.tanh(x / s)) ** 2, x) * (2 / np.pi) ** 0.5
    assert ShapedActivation(torch.tanh, s).gain == pytest.approx(exact**-0.5, rel=1e-8)
    for phi in ("tanh", np.tanh):
        assert limits.ShapedSmooth(phi, s).normalizer(7, 0) == pytest.approx(1 / exact, rel=1e-8)


@pytest.mark.parametrize(
    ("call", "code", "argument", "words"),
    [
        (lambda: ShapedActivation(torch.tanh, 1e-300).gain, "invalid-argument", "scale", ""),
        (
            lambda: limits.ShapedSmooth("expm1", 0.05).normalizer(1),
            "invalid-argument",
            "a",
            "scale",
        ),
        (lambda: limits.ShapedSmooth("tanh", 1e-200), "invalid-argument", "a", "a number"),
        (
            lambda: limits.ShapedSmooth(lambda x: 1 / 0).derivatives,
            "invalid-argument",
            "phi",
            "",
        ),
        (
            lambda: limits.ShapedSmooth(lambda x: x / (1 - 12 * x)).normalizer(100),
            "invalid-argument",
            "a",
            "scale",
        ),  # a pole
        (lambda: limits.ShapedReLU(1e200), "invalid-argument", "c_plus", ""),
        (
            lambda: limits.ShapedReLU().slopes(10, 0.7),
            "invalid-argument",
            "p",
            "least 0",
        ),
        (lambda: limits.ShapedSmooth().scale(10, 1e6), "invalid-argument", "p", "a finite"),
    ],
)
def test_wrong_shapes(call, code, argument, words):
    with refuses(code, argument=argument) as caught:
        call()
    assert words in str(caught.value)
