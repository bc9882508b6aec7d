"""Random numbers from the CPU, which a CUDA graph would repeat."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from orderone.training.stacked.host_draws import HostDraws

X = torch.ones(4)


def skip_with_probability(p: float) -> Tensor:
    if torch.rand([]) < p:
        return X
    return 2 * X


def uniform_numbers_between(low: float, high: float, bound: float) -> bool:
    return bool(torch.empty(2).uniform_(low, high)[0] > bound)


@pytest.mark.parametrize(
    "run",
    [
        lambda: X.sum(),
        lambda: skip_with_probability(0),
        lambda: skip_with_probability(1.5),
        lambda: uniform_numbers_between(0, 1, 1),
        lambda: uniform_numbers_between(0, 1, -1),
        lambda: torch.rand(3).view(3, 1)[1] >= 0,
    ],
)
def test_draws_without_effect(run: Callable[[], object]):
    with HostDraws() as draws:
        run()
    assert not draws.matter


@pytest.mark.parametrize(
    "run",
    [
        lambda: skip_with_probability(0.1),
        lambda: uniform_numbers_between(0, 2, 1),
        lambda: uniform_numbers_between(0, 1, 0.5),
        lambda: torch.rand(3) + 0.0 < 0,
        lambda: functional.dropout(X, 0.5),
        lambda: torch.randn([]) < 0,
        lambda: torch.rand([]).item() < 0,
        lambda: torch.rand([]).numpy() < 0,
        lambda: torch.randint(2, ()),
        lambda: torch.randperm(4),
        lambda: X.bernoulli(0.5),
        lambda: np.random.rand(),
        random.random,
        lambda: (skip_with_probability(0), skip_with_probability(0.5)),
        lambda: torch.stack([torch.rand([]), torch.tensor(3.0)]).max() < 0,
    ],
)
def test_draws_that_may_have_an_effect(run: Callable[[], object]):
    with HostDraws() as draws:
        run()
    assert draws.matter


def test_draws_in_a_backward_pass():
    x = torch.ones(4, requires_grad=True)
    y = 2 * x
    y.register_hook(lambda gradient: gradient * torch.rand(4))
    with HostDraws() as draws:
        y.sum().backward()
    assert draws.matter
