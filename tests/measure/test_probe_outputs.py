"""Kinds of outputs and parameters: nested outputs, complex numbers, sparse gradients, frozen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from probe_oracle import adamw, batch, sizes, table, train, twins
from torch import Tensor, nn

import orderone as o1


class Gives(nn.Module):
    """A linear layer whose output is wrapped by `wrap`."""

    def __init__(self, wrap: Callable[[Tensor], Any]):
        super().__init__()
        self.layer, self.wrap = nn.Linear(6, 4), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.layer(x))


class Outer(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]):
        super().__init__()
        self.inner, self.unwrap = Gives(wrap), unwrap

    def forward(self, x: Tensor) -> Tensor:
        return self.unwrap(self.inner(x))


def model_output(y: Tensor) -> Any:
    from transformers.modeling_outputs import CausalLMOutput

    return CausalLMOutput(loss=y.square().mean(), logits=y)  # type: ignore[arg-type]


WRAPPED: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda y: (y, y.tanh()), lambda v: v[0]),
    "dict": (lambda y: {"first": y, "second": None}, lambda v: v["first"]),
    "nested": (lambda y: [{"state": (y,)}, 1], lambda v: v[0]["state"][0]),
    "integers first": (lambda y: (y.argmax(-1), y), lambda v: v[1]),
    "scalar first": (lambda y: (y.sum(), y), lambda v: v[1]),
    "empty first": (lambda y: (y[:0], y), lambda v: v[1]),
    "ModelOutput": (model_output, lambda v: v.logits),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_the_main_tensor_of_an_output_is_recorded(kind):
    wrap, unwrap = WRAPPED[kind]
    model, plain = twins(lambda: Outer(wrap, unwrap))
    plain.inner.wrap, plain.unwrap = lambda y: y, lambda y: y
    frame, wanted = train(model, adamw(model)), train(plain, adamw(plain))
    assert (frame["module"] == "inner").any()
    pd.testing.assert_frame_equal(frame, wanted)


@pytest.mark.parametrize(
    "give",
    [
        lambda y: None,
        lambda y: "text",
        lambda y: y.argmax(-1),
        lambda y: y > 0,
        lambda y: y[:0],
        lambda y: y.sum(),
        lambda y: y.to_sparse(),
        lambda y: type("Out", (), {"logits": y[:0]})(),
        lambda y: type("Out", (), {"logits": y.argmax(-1)})(),
    ],
    ids=[
        "nothing",
        "text",
        "integers",
        "booleans",
        "empty",
        "scalar",
        "sparse",
        "empty logits",
        "integer logits",
    ],
)
def test_modules_without_a_measurable_output_have_no_record(give):
    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.aside = nn.Linear(6, 4), nn.Module()
            self.aside.forward = give  # type: ignore[method-assign]

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            self.aside(y)
            return y

    model = Aside()
    frame = train(model, adamw(model))
    assert set(frame.loc[frame["module"] == "aside", "quantity"]) == {"input"}
    assert set(frame.loc[frame["module"] == "layer", "quantity"]) == {
        "input",
        "output",
        "output gradient",
    }


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.fourier = nn.Module()
        self.fourier.forward = torch.fft.rfft  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(self.fourier(x) * self.filter)


def test_complex_numbers_have_the_sizes_of_their_moduli():
    model, other = twins(Complex)
    frame = table(
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1, batch=batch(9, 5, 6))
    )
    spectrum = torch.fft.rfft(batch(0, 5, 6))
    torch.fft.irfft(spectrum * other.filter).square().mean().backward()
    assert frame[0, "fourier", "output"] == pytest.approx(sizes(spectrum.abs()), rel=1e-5)
    assert frame[0, "filter", "weight"] == pytest.approx(sizes(other.filter.abs()), rel=1e-5)
    assert frame[0, "filter", "gradient"] == pytest.approx(sizes(other.filter.grad.abs()), rel=1e-5)
    assert frame[0, "filter", "update"] == pytest.approx(
        sizes(0.1 * other.filter.grad.abs()), rel=1e-4
    )
    assert frame[1, "fourier", "change"] == [0, 0, 0, 1]


def test_an_in_place_activation_does_not_change_earlier_records():
    def build(inplace: bool) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(inplace), nn.Linear(8, 8), nn.Hardtanh(-0.1, 0.1, inplace)
        )

    model, plain = twins(lambda: build(True))[0], twins(lambda: build(False))[0]
    frame, wanted = train(model, adamw(model)), train(plain, adamw(plain))
    assert table(frame).keys() == table(wanted).keys()
    for key, found in table(frame).items():
        assert found == pytest.approx(table(wanted)[key], rel=1e-6), key
    assert (
        table(frame)[0, "0", "output"][1] < table(frame)[0, "1", "output"][1]
    )  # which relu makes positive


def test_sparse_gradients_have_the_sizes_of_dense_ones():
    frames = []
    for sparse in (True, False):
        model = twins(
            lambda sparse=sparse: nn.Sequential(nn.Embedding(50, 6, sparse=sparse), nn.Linear(6, 2))
        )[0]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with o1.probe(model, optimizer) as p:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.tensor([[1, 2, 2], [7, 1, 1]])).square().sum().backward()
                optimizer.step()
        frames.append(table(p.frame))
    assert frames[0].keys() == frames[1].keys()
    for key, found in frames[0].items():
        assert found == pytest.approx(frames[1][key], rel=1e-5, abs=1e-8), key


def test_entries_that_are_not_finite_are_counted():
    x = batch(0, 5, 6)
    x[0, 0], x[1, 1], x[2, 2] = float("nan"), float("inf"), -float("inf")
    model = nn.Sequential(nn.Identity(), nn.Linear(6, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with o1.probe(model, optimizer) as p:
        model(x).sum().backward()
        optimizer.step()
        model(torch.where(x.isnan(), 0, x)).sum().backward()
    found = table(p.frame)
    assert found[0, "0", "output"] == pytest.approx([np.nan, np.nan, np.nan, 27 / 30], nan_ok=True)
    assert found[1, "0", "output"] == pytest.approx([np.inf, np.nan, np.inf, 28 / 30], nan_ok=True)
    assert found[0, "1", "output"][3] == pytest.approx(2 / 5)
    assert found[0, "1.weight", "gradient"][3] == pytest.approx(1 / 2)
    assert found[0, "1.weight", "weight"][3] == 1


def test_frozen_and_odd_parameters():
    """Frozen tensors have neither gradients nor updates, and integers have no records."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model[1].codes = nn.Parameter(torch.arange(3), requires_grad=False)
    model[1].none = nn.Parameter(torch.empty(0, 4))
    found = table(train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1))
    assert {q for _, name, q in found if name == "0.weight"} == {"weight"}
    assert {q for _, name, q in found if name == "1.weight"} == {"weight", "gradient", "update"}
    assert not {name for _, name, _ in found} & {"1.codes", "1.none"}
    assert (0, "0", "output gradient") not in found


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :2].clone(), x[:, 2:].clone()

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:  # type: ignore[override]
        return torch.cat([first, second], 1)


def test_an_output_that_nothing_uses_has_no_gradient():
    """torch calls the hooks of an unused output of a function without a gradient."""
    model = Outer(Halves.apply, lambda halves: halves[1])  # type: ignore[arg-type]
    frame = train(model, adamw(model))
    inner = frame[frame["module"] == "inner"]
    assert set(inner.quantity) == {"input", "output"}
