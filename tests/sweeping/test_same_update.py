"""Differences between two updates that rounding explains, and those that it does not."""

import pytest
import torch

from orderone.training.same_update import Update, difference, may_be_rounding

BEFORE = {"weight": torch.linspace(-1, 1, 64)}
GRADIENT = torch.linspace(1, 2, 64)
GPU = torch.device("cuda")  # no tensor is moved there


def update_of(gradient: torch.Tensor, loss: float = 1.0) -> Update:
    tensors = {"weight": BEFORE["weight"] - 0.1 * gradient}
    return Update([loss], {"weight": gradient}, tensors)


@pytest.mark.parametrize(
    ("apart", "device", "half", "expected"),
    [
        (5e-3, GPU, True, True),  # index_add of numbers of bfloat16 has 6e-3
        (0.3, GPU, True, False),
        (5e-3, GPU, False, False),  # float32 rounds by far less
        (5e-3, torch.device("cpu"), True, False),  # kernels of a CPU are repeatable
    ],
)
def test_additions_in_any_order_explain_small_differences_of_half_precision(
    apart, device, half, expected
):
    update = update_of(GRADIENT)
    other = update_of(GRADIENT * (1 + apart))
    assert difference(update, other, BEFORE, half) is not None
    assert may_be_rounding(update, other, BEFORE, half, device) is expected


def test_deterministic_kernels_explain_nothing():
    update = update_of(GRADIENT)
    other = update_of(GRADIENT * 1.005)
    torch.use_deterministic_algorithms(True)
    try:
        assert not may_be_rounding(update, other, BEFORE, True, GPU)
    finally:
        torch.use_deterministic_algorithms(False)


def test_another_loss_is_no_rounding():
    assert not may_be_rounding(update_of(GRADIENT), update_of(GRADIENT, 1.1), BEFORE, True, GPU)
