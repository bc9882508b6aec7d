"""Precision of recorded sizes, mixed precision and gradient scaling."""

import pytest
import torch
from probe_oracle import adamw, batch, compare, sizes, squares, table, train, twins
from support.probe_workers import net
from torch import Tensor, nn

import orderone as o1
from orderone.observe.moments import PIECE, Ledger


@pytest.mark.parametrize(
    ("dtype", "rel"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-5), (torch.float16, 1e-5)]
)
def test_other_precisions(dtype, rel):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)

    compare(
        build,
        lambda m, i: m(batch(i, 5, 6).to(dtype)).square().mean(),
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        rel=rel,
    )


def moments(x: Tensor) -> list[float]:
    ledger = Ledger()
    ledger.add(x)
    return list(ledger.fetch()[0].row())


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e25])
@pytest.mark.parametrize("shape", [(7,), (300, 400), (3, 5, 70001)])
def test_sizes_of_small_large_and_many_numbers(shape, scale):
    x = (1 + batch(0, *shape)) * scale
    assert moments(x) == pytest.approx(sizes(x), rel=1e-6)
    assert moments(x.transpose(0, -1)) == pytest.approx(sizes(x), rel=1e-6)


def test_squares_of_many_numbers_do_not_lose_digits():
    """One sum in single precision is off by 3e-5 here."""
    x = 1 + batch(0, 2**22)
    assert moments(x)[0] == pytest.approx(float(x.double().square().mean().sqrt()), rel=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e25, -1e-20])
@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, -1])
def test_one_entry_in_any_piece_counts(value, place):
    x = torch.zeros(2 * PIECE + 7)
    x[place] = value
    assert moments(x) == pytest.approx(sizes(x), rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_sizes_of_eight_bit_numbers(dtype):
    x = batch(0, 64).to(dtype)
    assert moments(x) == pytest.approx(sizes(x.float()), rel=1e-6)


def test_one_entry_in_many_that_is_not_finite():
    x = torch.zeros(2**25)
    x[0] = float("inf")
    assert moments(x)[3] == 1 - 2**-25


def test_an_unmasked_score_that_is_not_a_number_counts():
    layer = nn.Softmax(-1)
    model = nn.Sequential(nn.Linear(6, 4), layer)
    x = batch(0, 5, 6)
    x[0, 0] = float("nan")
    with o1.probe(model, quantities="scores") as p:
        model(x)
    assert p.frame["finite"].tolist() == [4 / 5]


def test_scores_of_nothing_and_of_integers():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            torch.softmax(torch.full((2, 2), -float("inf")), -1)
            torch.softmax(torch.arange(3), 0, dtype=torch.float32)
            return y + torch.softmax(y[:0], -1).sum()

    model = Odd()
    assert train(model, adamw(model), quantities="scores").empty


# --- mixed precision, processes -------------------------------------------------------------------


def test_autocast():
    def loss(model: nn.Module, number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return squares(model, number)

    seen = []
    frame = compare(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), loss)
    model = nn.Linear(6, 8)
    model.register_forward_hook(lambda m, a, y: seen.append(y.dtype))
    loss(model, 0)
    assert seen == [torch.bfloat16]
    assert (frame["finite"] == 1).all()


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler(fused):
    """Gradients of weights are those of the optimizer; those of outputs include the scale."""
    model, plain = twins(net)
    scale = 2.0**10
    optimizer, scaler = (
        torch.optim.AdamW(model.parameters(), 1e-2, fused=fused),
        torch.amp.GradScaler("cpu", scale),
    )
    with o1.probe(model, optimizer) as p:
        for step in range(2):
            optimizer.zero_grad()
            scaler.scale(squares(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
    wanted = table(train(plain, torch.optim.AdamW(plain.parameters(), 1e-2, fused=fused)))
    assert table(p.frame).keys() == wanted.keys()
    for (step, module, quantity), found in table(p.frame).items():
        by = [scale] * 3 + [1] if quantity == "output gradient" else [1] * 4
        expected = [x * y for x, y in zip(wanted[step, module, quantity], by, strict=True)]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6 * by[0]), (
            step,
            module,
            quantity,
        )
