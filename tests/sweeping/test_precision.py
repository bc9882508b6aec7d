"""Precision of unusual parameters: complex ones, and weights in half precision."""

import numpy as np
import pytest
import torch
from torch import nn

import orderone as o1
from orderone.planning.plan import fused_options

PRECISION = ("float32", "float64")


class Complex(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.filter = nn.Parameter(torch.randn(width // 2 + 1, dtype=torch.complex64))

    def forward(self, x):
        h = self.first(x)
        return self.head(torch.fft.irfft(torch.fft.rfft(h) * self.filter, n=h.shape[-1]).relu())


class Half(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        self.inner.bfloat16()

    def forward(self, x):
        return self.inner(x.bfloat16()).float()


def batch(step, seed):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * seed + step))
    return x, x[:, :3].argmax(1)


def sweep(build, **options):
    space = {"lr": [1e-2], "seed": [0, 1]}
    given = {"widths": [8], "data": batch, "steps": 4, "progress": False}
    return o1.sweep(build, space, **(given | options))


@pytest.mark.parametrize("precision", PRECISION)
def test_complex_parameters_stay_complex(precision):
    torch.manual_seed(0)
    model = Complex(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    o1.train(model, batch, 2, optimizer=optimizer, precision=precision, device="cpu")
    assert model.filter.dtype.to_real() == getattr(torch, precision)
    assert model.filter.is_complex()
    assert float(model.filter.detach().imag.abs().sum()) > 0


@pytest.mark.parametrize("precision", PRECISION)
def test_complex_parameters_in_a_sweep(precision):
    found = sweep(Complex, precision=precision)
    assert list(found.frame["status"]) == ["done", "done"]
    alone = sweep(Complex, precision=precision, stacked=False)
    for key, outcome in found.outcomes.items():
        assert np.array_equal(outcome.losses, alone.outcomes[key].losses)


@pytest.mark.parametrize(
    ("build", "optimizer", "fused"),
    [
        (lambda width: nn.Linear(6, width), "adamw", True),
        (lambda width: nn.Linear(6, width), "lion", False),
        (lambda width: nn.Sequential(nn.Embedding(6, width), nn.Linear(width, 3)), "adamw", True),
        (
            lambda width: nn.Sequential(nn.Embedding(6, width, sparse=True), nn.Linear(width, 3)),
            "sgd",
            False,
        ),
        (Complex, "adamw", False),
    ],
)
def test_fused_kernels_are_used_where_torch_has_them(build, optimizer, fused):
    plan = o1.plan(build(16), base=build(8), optimizer=optimizer, lr=1e-2)
    assert fused_options(plan) == ({"fused": True} if fused else {})


def test_weights_in_half_precision_agree_or_say_why_not():
    found, alone = sweep(Half), sweep(Half, stacked=False)
    stacked = {outcome.facts["engine"] for outcome in found.outcomes.values()} == {"stacked"}
    if stacked:
        assert all(found.verified)
    else:
        assert found.notes
    for key, outcome in found.outcomes.items():
        np.testing.assert_allclose(outcome.losses, alone.outcomes[key].losses, rtol=2e-2)
