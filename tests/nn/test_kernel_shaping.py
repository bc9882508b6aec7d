"""DKS and TAT: their conditions by independent averages, and wide networks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orderone.core.errors import InputError
from orderone.nn import ShapedReLU, TransformedActivation, shape_activations
from orderone.theory import activations, kernel_shaping


def of_arrays(module):
    def phi(x):
        with torch.no_grad():
            return module(torch.as_tensor(np.asarray(x, dtype=float))).numpy()

    return activations.get(phi)


def shaped(activation, depth, method, **target) -> Any:
    model = nn.Sequential(nn.Linear(2, 2), activation)
    shape_activations(model, depth=depth, method=method, **target)
    return model[1]


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.SiLU(), nn.GELU(), nn.Sigmoid(), nn.ELU()])
def test_conditions_of_dks(activation):
    module = shaped(activation, 50, "dks")
    assert isinstance(module, TransformedActivation)
    phi = of_arrays(module)
    assert phi.second_moment(1.0) == pytest.approx(1, abs=1e-6)  # Q(1)
    slope = (phi.second_moment(1.001) - phi.second_moment(0.999)) / 0.002
    assert slope == pytest.approx(1, abs=1e-3)  # Q'(1)
    assert phi.mean(1.0) == pytest.approx(0, abs=1e-6)  # C(0)
    assert phi.derivative_moment(1.0) ** 50 == pytest.approx(1.5, rel=1e-3)  # C'(1)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.SiLU(), nn.Softplus()])
def test_conditions_of_smooth_tat(activation):
    depth = 20
    module = shaped(activation, depth, "tat")
    phi = of_arrays(module)
    assert phi.second_moment(1.0) == pytest.approx(1, abs=1e-5)
    slope = (phi.second_moment(1.001) - phi.second_moment(0.999)) / 0.002
    assert slope == pytest.approx(1, abs=1e-3)
    assert phi.derivative_moment(1.0) == pytest.approx(1, abs=1e-5)
    bend = (phi.derivative_moment(1.0) - phi.derivative_pair(1.0, 1.0, 1e-3)) / 1e-3
    assert depth * bend == pytest.approx(0.3, rel=0.02)  # C''(1)


def test_tat_of_kinks_reaches_its_correlation():
    depth = 30
    module = shaped(nn.ReLU(), depth, "tat")
    assert isinstance(module, ShapedReLU)
    gap = 1.0
    phi = activations.get(f"leaky-relu({module.minus})")
    for _ in range(depth):
        gap = float(phi.output_gap(1.0, 1.0, gap))
    assert 1 - gap == pytest.approx(0.9, abs=1e-6)
    assert shaped(nn.ReLU(), depth, "tat", target=0.5).minus > module.minus
    assert kernel_shaping.tailored_slope(2, 0.9) == 0  # two layers of ReLU stay below
    with pytest.raises(InputError, match="eta"):
        kernel_shaping.tailored_slope(2, 1.0)


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
            weight = torch.randn(width, width, generator=generator) * module.gain / width**0.5
            h = module(h @ weight.T)
        overlaps.append((h[0] @ h[1] / h[0].norm() / h[1].norm()).item())
    assert np.mean(overlaps) == pytest.approx(0.0 if method == "dks" else 0.9, abs=0.06)


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="no-shaped-form"):  # homogeneous
        shape_activations(nn.Sequential(nn.ReLU()), depth=20, method="dks")
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    wrong: tuple[dict[str, Any], ...] = (
        {"method": "dks"},
        {"method": "dks", "depth": 4, "width": 8},
        {"depth": 4, "target": 1.5},
        {"method": "best", "depth": 4},
    )
    for arguments in wrong:
        with pytest.raises(InputError):
            shape_activations(model, **arguments)
    shaping = shape_activations(model, depth=4, method="tat")
    with pytest.raises(InputError, match="already-shaped"):
        shape_activations(model, depth=4)
    shaping.undo()
    assert isinstance(model[1], nn.Tanh)
