"""Kernels on a GPU are those on a CPU, and keep their bound of working memory."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from test_empirical_transformers import gpt2, tokens
from torch import nn

import orderone as o1
from orderone.measure.kernels import (
    KernelRegression,
    MSEDynamics,
    empirical_adam_ntk,
    kernel_from_module,
    ntk_costs,
)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
GPU = DEVICES[1]
MIB = 2**20


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 48), nn.GELU(), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 3)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()


def vectors() -> torch.Tensor:
    return torch.randn(6, 5, dtype=torch.float64)


def pictures() -> torch.Tensor:
    return torch.randn(6, 3, 8, 8, dtype=torch.float64)


CASES = {
    "mlp": (mlp, vectors),
    "convolutional": (convolutional, pictures),
    "gpt2": (gpt2, tokens),
}


def first_logits(output) -> torch.Tensor:
    return output.logits[:, -1, :4]


def moved(batch: Any, device: str) -> Any:
    if isinstance(batch, dict):
        return {name: values.to(device) for name, values in batch.items()}
    return batch.to(device)


def made(name: str, device: str) -> tuple[nn.Module, Any, nn.Module, Any]:
    """Return a model in double precision and a batch, on the CPU and on the device."""
    build, draw = CASES[name]
    torch.manual_seed(0)
    model = build().double()
    batch = draw()
    return model, batch, deepcopy(model).to(device), moved(batch, device)


def same(found: torch.Tensor, expected: torch.Tensor, device: str) -> None:
    assert found.device.type == device
    scale = float(expected.abs().max())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["jacobian", "products"])
@pytest.mark.parametrize("outputs", ["trace", "all"])
@pytest.mark.parametrize("name", CASES)
def test_tangent_kernels(name, outputs, method, device):
    model, batch, there, on_device = made(name, device)
    select = first_logits if name == "gpt2" else None
    expected = o1.empirical_ntk(model, batch, outputs=outputs, select=select)
    found = o1.empirical_ntk(there, on_device, outputs=outputs, select=select, method=method)
    same(found, expected, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_outputs_and_of_each_parameter(name, device):
    model, batch, there, on_device = made(name, device)
    same(o1.empirical_nngp(there, on_device), o1.empirical_nngp(model, batch), device)
    expected = o1.empirical_ntk(model, batch, groups="each")
    found = o1.empirical_ntk(there, on_device, groups="each")
    scale = max(float(kernel.abs().max()) for kernel in expected.values())
    for group, kernel in expected.items():
        torch.testing.assert_close(found[group].cpu(), kernel, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("device", DEVICES)
def test_tangent_kernel_of_adam(device):
    model, batch, there, on_device = made("mlp", device)
    for one, x in ((model, batch), (there, on_device)):
        one(x).square().sum().backward()
    expected = empirical_adam_ntk(model, batch, outputs="all")
    same(empirical_adam_ntk(there, on_device, outputs="all"), expected, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mlp", "convolutional"])
def test_limits_of_modules(name, device):
    model, batch, there, on_device = made(name, device)
    expected = kernel_from_module(model, batch)(batch)
    found = kernel_from_module(there, on_device)(on_device)
    for kind in ("nngp", "ntk"):
        one = torch.as_tensor(getattr(found, kind)).cpu()
        other = torch.as_tensor(getattr(expected, kind)).cpu()
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def last_loss(model: nn.Module, x: torch.Tensor) -> float:
    """Train the linearized model for five steps."""
    line = o1.linearize(model)
    optimizer = torch.optim.SGD(line.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    for _ in range(5):
        optimizer.zero_grad()
        loss = (line(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("device", DEVICES)
def test_linearized_models_train(device):
    model, batch, there, on_device = made("mlp", device)
    assert last_loss(there, on_device) == pytest.approx(last_loss(model, batch), rel=1e-9)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_regression_and_dynamics(method, device):
    model, batch, there, on_device = made("mlp", device)
    targets = torch.randn(6, 3, dtype=torch.float64)
    expected = o1.empirical_ntk(model, batch)
    found = o1.empirical_ntk(there, on_device)
    here = KernelRegression(expected, targets, 0.1, method="cholesky")
    regression = KernelRegression(found, targets.to(device), 0.1, method=method, tolerance=1e-12)
    same(regression.predict(found), here.predict(expected), device)
    flow = MSEDynamics(found, targets.to(device)).flow(2.0)
    same(flow.train, MSEDynamics(expected, targets).flow(2.0).train, device)


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("method", ["jacobian", "products"])
def test_working_memory_is_bounded(method, device):
    wide = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model = nn.Sequential(wide, nn.Linear(1024, 10)).to(device)
    x = torch.randn(512, 64, device=device)
    bound = 256 * MIB
    expected = o1.empirical_ntk(model, x, memory=8 * bound)
    assert len(expected) == 512
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = o1.empirical_ntk(model, x, method=method, memory=bound)
    used = torch.cuda.max_memory_allocated() - before
    assert ntk_costs(model, x, method=method, memory=bound).method == method
    assert used < bound + found.nbytes
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))
