"""DKS and TAT: their conditions by a quadrature of its own, published values, and wide networks."""

from math import factorial
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import nn

from orderone.nn import ShapedReLU, TransformedActivation, shape_activations
from orderone.theory import kernel_shaping

KINKS = {"Hardswish": [-3.0, 3.0], "Hardtanh": [-1.0, 1.0], "Hardsigmoid": [-3.0, 3.0]}


class Swish(nn.Module):
    """An activation of users."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


def shaped(activation, depth, method, **settings) -> Any:
    model = nn.Sequential(nn.Linear(2, 2), activation)
    shape_activations(model, depth=depth, method=method, **settings)
    return model[1]


def line(module, activation):
    """Return x and weights of a standard normal, in panels that end at the kinks."""
    kinks = np.array(KINKS.get(type(activation).__name__, [0.0]))
    if isinstance(module, TransformedActivation):
        kinks = (kinks - module.beta) / module.alpha
    ends = np.unique(np.concatenate([np.linspace(-13, 13, 131), kinks[np.abs(kinks) < 13]]))
    t, weights = np.polynomial.legendre.leggauss(24)
    half = np.diff(ends)[:, None] / 2
    x = (half * t + (ends[:-1, None] + half)).ravel()
    return x, (half * weights).ravel() * np.exp(-x * x / 2) / (2 * np.pi) ** 0.5


def values(module, x, order=0):
    at = torch.tensor(x, requires_grad=True)
    y = module(at)
    found = [y]
    for _ in range(order):
        (y,) = torch.autograd.grad(y.sum(), at, create_graph=True)
        found.append(y)
    return [each.detach().numpy() for each in found]


@pytest.mark.parametrize("depth", [1, 2, 50, 1000])
@pytest.mark.parametrize(
    "activation",
    [
        nn.Tanh(),
        nn.SiLU(),
        nn.GELU(),
        nn.Sigmoid(),
        nn.Softsign(),
        nn.Hardswish(),
        nn.ReLU(),
        nn.LeakyReLU(0.3),
        Swish(),
    ],
)
def test_conditions_of_dks(activation, depth):
    module = shaped(activation, depth, "dks")
    x, weights = line(module, activation)
    value, slope = values(module, x, 1)
    assert weights @ value**2 == pytest.approx(1, abs=1e-8)  # Q(1)
    assert weights @ (x * value * slope) == pytest.approx(1, abs=1e-8)  # Q'(1)
    assert weights @ value == pytest.approx(0, abs=1e-8)  # C(0)
    assert (weights @ slope**2) ** depth == pytest.approx(1.5, abs=1e-8)  # C'(1)


@pytest.mark.parametrize("depth", [1, 20, 1000])
@pytest.mark.parametrize("activation", [nn.Tanh(), nn.SiLU(), nn.Softplus(), nn.ELU(), torch.sin])
def test_conditions_of_smooth_tat(activation, depth):
    holder: Any = nn.Sequential(nn.Linear(2, 2))
    holder.act = activation
    shape_activations(holder, depth=depth, method="tat")
    module = holder.act
    x, weights = line(module, activation)
    value, slope, bend = values(module, x, 2)
    assert weights @ value**2 == pytest.approx(1, abs=1e-8)
    assert weights @ (x * value * slope) == pytest.approx(1, abs=1e-8)
    assert weights @ slope**2 == pytest.approx(1, abs=1e-8)
    assert depth * (weights @ bend**2) == pytest.approx(0.3, abs=1e-8)  # C''(1)


def correlation_map(module, activation, terms=60):
    """Return the coefficients of C(c) = sum of b_k c^k, from Hermite polynomials."""
    x, weights = line(module, activation)
    (value,) = values(module, x)
    coefficients = []
    for k in range(terms):
        hermite = np.polynomial.hermite_e.hermeval(x, [0] * k + [1])
        coefficients.append((weights @ (value * hermite)) ** 2 / factorial(k))
    return np.polynomial.Polynomial(coefficients)


@pytest.mark.parametrize("depth", [3, 30, 300])
def test_tat_of_kinks_reaches_its_correlation(depth):
    module = shaped(nn.ReLU(), depth, "tat")
    assert isinstance(module, ShapedReLU)
    assert module.gain == pytest.approx(1, rel=1e-14)
    C = correlation_map(module, nn.ReLU(), 100)
    c = 0.0
    for _ in range(depth):
        c = C(c)
    if depth == 3:  # the ReLU itself stays below
        assert module.minus == 0
        assert 1 / np.pi < c < 0.9
    else:
        assert c == pytest.approx(0.9, abs=1e-4)  # the series ends


def test_slopes_of_tat():
    assert shaped(nn.ReLU(), 30, "tat", target=0.5).minus > shaped(nn.ReLU(), 30, "tat").minus
    assert kernel_shaping.tailored_slope(2, 0.9) == 0  # two layers of ReLU stay below
    with refuses("invalid-argument", argument="eta"):
        kernel_shaping.tailored_slope(2, 1.0)


# alpha, beta, gamma, delta of the package of the authors (its solver and its quadrature)
PUBLISHED = {
    ("dks", nn.Tanh, 1): (1.28323916, 1.57835776, 2.12879615, -0.68948348),
    ("dks", nn.Tanh, 50): (0.12844047, 0.57077955, 10.60444762, -0.50980724),
    ("dks", nn.SiLU, 50): (0.18442861, 0.34881792, 8.08139614, -0.21246524),
    ("dks", nn.SiLU, 1000): (0.04069131, 0.35001342, 36.59768886, -0.20571437),
    ("dks", nn.GELU, 1000): (0.02688402, 0.26024494, 52.90940727, -0.15710909),
    ("dks", nn.ELU, 2): (1.69356956, -0.6841997, 0.96808098, 0.06024467),
    ("tat", nn.Tanh, 1000): (0.01819852, 0.51815878, 71.06823432, -0.47632813),
    ("tat", nn.SiLU, 2): (0.71703335, 0.45855509, 1.89601997, -0.24523635),
    ("tat", nn.SiLU, 1000): (0.02741606, 0.44661508, 50.93334361, -0.27229071),
    ("tat", nn.GELU, 50): (0.08174011, 0.32683280, 16.26047742, -0.20430296),
}


@pytest.mark.parametrize(("method", "kind", "depth"), PUBLISHED)
def test_published_values(method, kind, depth):
    module = shaped(kind(), depth, method)
    found = (module.alpha, module.beta, module.gamma, module.delta)
    assert found == pytest.approx(PUBLISHED[method, kind, depth], rel=2e-6)


def test_published_values_of_residual_networks():
    network = kernel_shaping.residual_network(16, 2, 0.5)
    tanh = shaped(nn.Tanh(), None, "dks", network=network)
    assert tanh.alpha == pytest.approx(0.18279533, rel=1e-6)
    swish = shaped(nn.SiLU(), None, "tat", network=network)
    assert swish.gamma == pytest.approx(7.93080825, rel=1e-6)
    tailored = shaped(nn.ReLU(), None, "tat", network=network)
    assert tailored.minus / tailored.plus == pytest.approx(0.23910591, rel=1e-6)
    slope, gamma, delta = kernel_shaping.shifted_leaky(network)
    assert (slope, gamma, delta) == pytest.approx((0.72309830, 1.15529186, -0.11046780), rel=1e-6)


def test_a_chain_as_a_function_is_a_chain():
    def chain(c, layer):
        for _ in range(40):
            c = layer(c)
        return c

    assert kernel_shaping.shifted_leaky(chain) == pytest.approx(kernel_shaping.shifted_leaky(40))
    by_function = shaped(nn.GELU(), None, "dks", network=chain)
    assert by_function.alpha == pytest.approx(shaped(nn.GELU(), 40, "dks").alpha, rel=1e-9)
    # without shortcuts, blocks of two layers and the layer at the end
    plain = kernel_shaping.residual_network(20, 2, 0.0)
    assert kernel_shaping.tailored_slope(plain) == pytest.approx(kernel_shaping.tailored_slope(41))


def test_lengths_are_stable():
    """Softplus has two solutions; lengths of the other one move 30 times as much."""
    module = shaped(nn.Softplus(), 100, "tat")
    x, weights = line(module, nn.Softplus())
    (longer,) = values(module, 2**0.5 * x)
    assert abs(weights @ longer**2 / 2 - 1) < 3e-4
    assert module.beta > 0


@pytest.mark.parametrize("method", ["dks", "tat"])
def test_networks_do_what_the_solvers_promise(method):
    """Two orthogonal inputs after 16 layers: uncorrelated with DKS, 0.9 with TAT."""
    depth, width = 16, 600
    module = shaped(nn.SiLU() if method == "dks" else nn.ReLU(), depth, method)
    generator = torch.Generator().manual_seed(0)
    overlaps = []
    for _ in range(6):
        h = torch.linalg.qr(torch.randn(width, 2, generator=generator))[0].T * width**0.5
        for _ in range(depth):
            weight = torch.randn(width, width, generator=generator) / width**0.5
            h = module(h @ weight.T)
        overlaps.append((h[0] @ h[1] / h[0].norm() / h[1].norm()).item())
        assert float(h.square().mean()) == pytest.approx(1, abs=0.35)
    assert np.mean(overlaps) == pytest.approx(0.0 if method == "dks" else 0.9, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "activation"), [("dks", nn.GELU()), ("dks", nn.ReLU()), ("tat", nn.Tanh())]
)
def test_correlation_maps_of_wide_networks(method, activation):
    """Vanilla networks of width 2048 and depth 50: six correlations, 32 pairs in each network.

    A correlation fluctuates by about sqrt(depth / width) (1 - c^2), and its mean moves by the
    order of depth / width.
    """
    depth, width, networks, pairs = 50, 2048, 2, 32
    module = shaped(activation, depth, method)
    C = correlation_map(module, activation)
    starts = torch.tensor([-0.8, -0.3, 0.0, 0.3, 0.7, 0.95])[:, None, None]
    designed = starts.flatten().numpy()
    for _ in range(depth):
        designed = C(designed)
    measured = []
    for seed in range(networks):
        generator = torch.Generator().manual_seed(seed)
        frame = torch.linalg.qr(torch.randn(width, 2 * pairs, generator=generator))[0].T
        first, second = width**0.5 * frame.reshape(2, pairs, width)
        h = torch.cat([first[None], starts * first + (1 - starts**2).sqrt() * second])
        for _ in range(depth):
            weight = torch.randn(width, width, generator=generator) / width**0.5
            h = module(h @ weight.T)
        measured.append(torch.cosine_similarity(h[1:], h[:1], dim=-1).mean(1).numpy())
    fluctuation = (depth / width / networks / pairs) ** 0.5 * (1 - designed**2)
    difference = np.mean(measured, axis=0) - designed
    np.testing.assert_array_less(np.abs(difference), 3 * fluctuation + depth / width)


def test_equal_activations_are_solved_once():
    model = nn.Sequential(*(nn.GELU() for _ in range(50)))
    before = list(model)
    shape_activations(model, depth=50, method="dks")
    assert len({module.extra_repr() for module in model}) == 1
    assert all(module.phi is not gelu for module, gelu in zip(model, before, strict=True))


@pytest.mark.parametrize(
    ("activation", "method"),
    [
        (nn.Hardswish(), "tat"),  # the slope jumps at 3
        (nn.Hardtanh(), "dks"),  # no solution at this depth
        (nn.Hardshrink(), "dks"),  # jumps
        (nn.PReLU(), "dks"),
        (nn.GLU(), "tat"),
    ],
)
def test_activations_without_a_form_are_refused(activation, method):
    with pytest.raises(ValueError, match="no-shaped-form"):
        shaped(activation, 20, method)


def test_arguments_that_do_not_fit_are_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    wrong: tuple[dict[str, Any], ...] = (
        {"method": "dks"},
        {"method": "dks", "depth": 4, "width": 8},
        {"method": "dks", "depth": 4, "network": kernel_shaping.residual_network(2)},
        {"method": "tat", "network": 5},
        {"depth": 4, "target": 1.5},
        {"depth": 4, "network": kernel_shaping.residual_network(2)},
        {"method": "best", "depth": 4},
        {"method": "dks", "depth": 4, "target": 1.0},
    )
    for arguments in wrong:
        with pytest.raises(ValueError):
            shape_activations(model, **arguments)
    with refuses("no-shaped-form", argument="depth"):
        kernel_shaping.shifted_leaky(1, 4.0)
    with refuses("invalid-argument", argument="depth"):
        kernel_shaping.shifted_leaky(lambda c, layer: c)
    shaping = shape_activations(model, depth=4, method="tat")
    with refuses("already-shaped", argument="model"):
        shape_activations(model, depth=4)
    shaping.undo()
    assert isinstance(model[1], nn.Tanh)
