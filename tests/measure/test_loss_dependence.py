"""Tensors on whose values a loss does not depend."""

import pytest
import torch

from orderone.measure.loss_dependence import unused_tensors


@pytest.mark.parametrize("used", [(), (0,), (3,), (1, 4), tuple(range(7))])
def test_each_unused_tensor_is_found_and_every_value_restored(used):
    tensors = {f"w{i}": torch.full((2, 3), float(i)) for i in range(7)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}

    def loss() -> float:
        return float(sum(tensors[f"w{i}"].square().sum() for i in used))

    expected = set(tensors) - {f"w{i}" for i in used}
    assert unused_tensors(tensors, loss) == expected
    for name, tensor in tensors.items():
        assert torch.equal(tensor, before[name])


def test_nothing_is_said_about_a_loss_that_is_random():
    assert unused_tensors({"w": torch.zeros(2)}, lambda: float(torch.rand(()))) == frozenset()
