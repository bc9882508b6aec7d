"""Linearized models and their dynamics against real training, and regression against solves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.nn.functional import mse_loss

import orderone as o1
from orderone.core.errors import InputError
from orderone.measure.kernels import KernelRegression, MSEDynamics, Tiles, TrainedEnsemble
from orderone.theory import kernels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)).double()


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return x[:4], torch.randn(4, 2, generator=generator, dtype=torch.float64), x[4:]


def dynamics(model: nn.Module, **options: str) -> MSEDynamics:
    x, y, new = data()
    model.eval()
    return MSEDynamics(
        o1.empirical_ntk(model, x, outputs="all"),
        y,
        model(x),
        test_ntk=o1.empirical_ntk(model, new, x, outputs="all"),
        test_initial=model(new),
        **options,
    )


def test_linearized_model_is_the_tangent():
    model = network()
    x, _, _ = data()
    tangent = o1.linearize(model)
    torch.testing.assert_close(tangent(x), model(x))
    directions = [torch.randn_like(p) for p in model.parameters()]
    step = 1e-6
    with torch.no_grad():
        plus, minus = network(), network()
        for i, p in enumerate(tangent.parameters()):
            p += directions[i]
        for sign, moved in ((step, plus), (-step, minus)):
            for p, d in zip(moved.parameters(), directions, strict=True):
                p += sign * d
        slope = (plus(x) - minus(x)) / (2 * step)
    torch.testing.assert_close(tangent(x), model(x) + slope, rtol=1e-6, atol=1e-8)
    assert tangent.train().training
    assert not tangent.model.training


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.8},
        {"momentum": 0.8, "nesterov": True},
        {"momentum": 0.5, "dampening": 0.3},
    ],
)
def test_gradient_descent_of_the_linearized_model(options: dict[str, Any]):
    model = network()
    x, y, new = data()
    tangent = o1.linearize(model)
    optimizer = torch.optim.SGD(tangent.parameters(), lr=0.05, **options)
    for _ in range(25):
        optimizer.zero_grad()
        mse_loss(tangent(x), y).backward()
        optimizer.step()
    predicted = dynamics(model).gradient_descent(25, 0.05, **options)
    torch.testing.assert_close(predicted.train, tangent(x).detach())
    assert predicted.test is not None
    torch.testing.assert_close(predicted.test, tangent(new).detach())


def test_batches_flow_and_end():
    model = network()
    x, y, new = data()
    trace = o1.empirical_ntk(model, x, outputs="mean")
    simple = MSEDynamics(trace, y, loss="half-sum")
    whole = simple.sgd([range(4)] * 30, lr=0.01)
    torch.testing.assert_close(whole.train, simple.gradient_descent(30, 0.01).train)
    # small steps are gradient flow; the end interpolates
    flow = dynamics(model).flow(2.0)
    fine = dynamics(model).gradient_descent(20000, 1e-4)
    torch.testing.assert_close(flow.train, fine.train, rtol=1e-3, atol=1e-3)
    assert flow.test is not None
    assert fine.test is not None
    torch.testing.assert_close(flow.test, fine.test, rtol=1e-3, atol=1e-3)
    end = dynamics(model).flow()
    torch.testing.assert_close(end.train, y)
    full = o1.empirical_ntk(model, x, outputs="all").permute(0, 2, 1, 3).reshape(8, 8)
    cross = o1.empirical_ntk(model, new, x, outputs="all").permute(0, 2, 1, 3).reshape(4, 8)
    expected = model(new).reshape(-1) + cross @ torch.linalg.solve(full, (y - model(x)).reshape(-1))
    assert end.test is not None
    torch.testing.assert_close(end.test, expected.reshape(2, 2).detach())
    bound = dynamics(model).largest_stable_lr
    below = dynamics(model).gradient_descent(4000, 0.999 * bound).train
    above = dynamics(model).gradient_descent(4000, 1.02 * bound).train
    assert (below - y).norm() < 10
    assert (above - y).norm() > 1e3


def test_wide_network_follows_the_kernel():
    """The network itself, at a large width, moves as its linearization."""
    torch.manual_seed(0)
    x, y, _ = data()
    x, y = x.float(), y[:, :1].float()
    net = kernels.Sequential(kernels.Dense(2.0), kernels.Activation("erf"), kernels.Dense())
    model = o1.nn.from_layers(net, inputs=3, width=4096, outputs=1)
    theory = MSEDynamics(net(kernels.inputs(x.numpy())).ntk, y, model(x)).gradient_descent(40, 0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(40):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    assert (model(x) - y).norm() < 0.5 * y.norm()
    torch.testing.assert_close(theory.train, model(x).detach(), rtol=0.1, atol=0.1)


def kernel_of(points: np.ndarray) -> kernels.Kernel:
    net = kernels.Sequential(kernels.Dense(2.0, 0.1), kernels.Activation("relu"), kernels.Dense())
    return net(kernels.inputs(points))


@pytest.mark.parametrize("method", ["cholesky", "cg"])
def test_regression(method: str, tmp_path: Path):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(430, 5))
    k = kernel_of(points).ntk
    y = np.sin(points[:400, :2])
    expected = k[400:, :400] @ np.linalg.solve(k[:400, :400] + 1e-3 * np.eye(400), y)
    options = {"method": method, "rank": 64, "tolerance": 1e-10}
    found = KernelRegression(k[:400, :400], y, 1e-3, **options)
    np.testing.assert_allclose(found.predict(k[400:, :400]), expected, rtol=1e-6, atol=1e-8)
    solve = np.linalg.solve(k[:400, :400] + 1e-3 * np.eye(400), k[:400, 400:])
    covariance = k[400:, 400:] - k[400:, :400] @ solve
    found_covariance = found.covariance(k[400:, :400], k[400:, 400:])
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-6, atol=1e-8)
    on_disk = np.memmap(tmp_path / "k", dtype=float, mode="w+", shape=(400, 400))
    on_disk[:] = k[:400, :400]
    mapped = KernelRegression(on_disk, y[:, 0], 1e-3, **options)
    np.testing.assert_allclose(mapped.predict(k[400:, :400]), expected[:, 0], rtol=1e-6, atol=1e-8)


def test_tiles_and_the_preconditioner():
    """Tiles are computed when needed; the preconditioner saves most of the steps."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 5))
    k = kernel_of(points).ntk
    y = np.sin(points[:, 0])
    tiles = Tiles(300, lambda rows, columns: k[rows, columns])
    with_factor = KernelRegression(tiles, y, 1e-3, rank=100, tolerance=1e-8)
    plain = KernelRegression(tiles, y, 1e-3, rank=0, tolerance=1e-8)
    assert with_factor.method == "cg"
    expected = np.linalg.solve(k + 1e-3 * np.eye(300), y)
    np.testing.assert_allclose(with_factor.coefficients[:, 0], expected, rtol=1e-4, atol=1e-4)
    assert with_factor.steps < plain.steps / 2


def test_tiles_are_computed_once_if_they_are_kept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("orderone.measure.kernels.triangle.STRIP_NUMBERS", 900)
    points = np.random.default_rng(0).normal(size=(300, 5)).astype("float32")
    net = kernels.Sequential(kernels.Dense(2.0, 0.1), kernels.Activation("relu"), kernels.Dense())
    part = kernels.tiles(net, points)
    computed: list[int] = []

    def tile(rows: slice, columns: slice) -> np.ndarray:
        found = part(rows, columns)
        if found.shape[0] > 1 and found.shape[1] > 1 and columns.stop == 300:
            computed.append(found.size)
        return found

    path = tmp_path / "kernel"
    y = np.sin(points[:, 0])
    kept = KernelRegression(Tiles(300, tile, path), y, 0.01, rank=50)
    assert sum(computed) < 300 * 301 / 2 + 300 * 32  # one pass, and the tiles of the diagonal
    assert path.stat().st_size < 4 * (300 * 301 / 2 + 300 * 32)
    expected = np.linalg.solve(kernel_of(points.astype(float)).nngp + 0.01 * np.eye(300), y)
    np.testing.assert_allclose(kept.coefficients[:, 0], expected, rtol=1e-3, atol=1e-3)
    posterior = kept.covariance(part(slice(0, 3), slice(0, 300)), part(slice(0, 3), slice(0, 3)))
    assert (np.linalg.eigvalsh(posterior.numpy()) > 0).all()
    with refuses("invalid-argument", argument="kernel"):
        KernelRegression(Tiles(300, tile, path), y, 0.01)
    path.write_bytes(path.read_bytes()[:-8])
    with refuses("invalid-argument", argument="kernel"):
        kept.covariance(part(slice(0, 3), slice(0, 300)), part(slice(0, 3), slice(0, 3)))


def test_single_precision_takes_no_more_steps():
    """The largest eigenvalue is 1e6 times the ridge: vectors need double precision."""
    points = np.random.default_rng(0).normal(size=(800, 8))
    k = kernel_of(points).nngp
    y = np.sin(points[:, 0])
    steps = []
    for dtype in ("float64", "float32"):
        options = {"method": "cg", "rank": 200, "tolerance": 1e-3}
        found = KernelRegression(k.astype(dtype), y.astype(dtype), 3e-4, **options)
        steps.append(found.steps)
        assert found.coefficients.numpy().dtype == dtype
    assert steps[1] <= steps[0] + 2


def test_numbers_that_are_none_are_refused():
    k = np.eye(40) + np.diag(np.full(39, np.nan), 1)
    with refuses("invalid-argument", argument="kernel"):
        KernelRegression(k, np.ones(40), 0.1, method="cg", rank=4)
    with refuses("not-solved", argument="iterations"):
        KernelRegression(k, np.ones(40), 0.1, method="cg", rank=0, iterations=3)


def test_singular_kernels_are_refused():
    k = np.ones((3, 3))
    with refuses("needs-ridge", argument="ridge"):
        KernelRegression(k, np.ones(3), method="cholesky")
    with refuses("not-solved", argument="iterations"):
        KernelRegression(
            kernel_of(np.random.default_rng(0).normal(size=(50, 2))).ntk,
            np.ones(50),
            1e-9,
            method="cg",
            rank=1,
            iterations=2,
        )
    with pytest.raises(InputError, match="targets"):
        KernelRegression(k, np.ones(4))


def test_ensemble_of_trained_networks():
    """neural-tangents 0.6.5, `gradient_descent_mse_ensemble` at t = None, on the same inputs."""
    points = np.array([[1.0, 2, -1], [0.3, -1, 2], [1.1, 0.2, -1], [-1, -2, 0.5]])
    k = kernel_of(points)
    y = np.array([1.0, -1.0, 0.5])
    ensemble = TrainedEnsemble(k.nngp[:3, :3], k.ntk[:3, :3], y)
    mean = ensemble.predict(k.ntk[3:, :3])
    covariance = ensemble.covariance(k.ntk[3:, :3], k.nngp[3:, :3], k.nngp[3:, 3:])
    np.testing.assert_allclose(mean, [-0.5304978552], rtol=1e-8)
    np.testing.assert_allclose(covariance, [[1.111476404]], rtol=1e-8)


@pytest.mark.parametrize("method", ["cholesky", "cg"])
@pytest.mark.parametrize("form", ["array", "tiles"])
def test_only_the_upper_triangle_is_read(method, form, monkeypatch):
    monkeypatch.setattr("orderone.measure.kernels.triangle.STRIP_NUMBERS", 900)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 5))
    k = kernel_of(points).ntk
    y = np.stack([np.sin(points[:, 0]), points[:, 1]], 1)
    expected = np.linalg.solve(k + 0.01 * np.eye(300), y)
    upper = np.triu(k) + np.tril(np.full_like(k, 1e3), -1)
    kernel = upper
    if form == "tiles":
        kernel = Tiles(300, lambda rows, columns: upper[rows, columns])
    solved = KernelRegression(kernel, y, 0.01, method=method, rank=50, tolerance=1e-9)
    np.testing.assert_allclose(solved.coefficients, expected, rtol=1e-5, atol=1e-6)
