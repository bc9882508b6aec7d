"""The tangent kernel of AdamW against the sum by hand and against one step of a sign update."""

import pytest
import torch
from torch import nn

from orderone.core.errors import InputError
from orderone.measure.kernels import empirical_adam_ntk


def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2)).double()
    x = torch.randn(4, 3).double()
    model.eval()
    model(x).square().sum().backward()
    return model.train(), x


def test_it_is_the_sum_over_parameters():
    model, x = trained()
    rates = {"0.weight": 0.5}
    found = empirical_adam_ntk(model, x, outputs="all", rates=rates)
    assert model.training
    model.eval()
    names = dict(model.named_parameters())
    rows = []
    for output in model(x).flatten():
        parts = []
        gradients = torch.autograd.grad(output, list(names.values()), retain_graph=True)
        for name, gradient in zip(names, gradients, strict=True):
            measured = names[name].grad
            assert measured is not None
            step = rates.get(name, 1.0) / (measured.abs() + 1e-8)
            parts.append((gradient * step.sqrt()).flatten())
        rows.append(torch.cat(parts))
    jacobian = torch.stack(rows)
    expected = (jacobian @ jacobian.T).reshape(4, 2, 4, 2).transpose(1, 2)
    torch.testing.assert_close(found, expected)


def test_it_predicts_a_small_step():
    """df = -lr H dL/df for the update -lr g / |g|."""
    model, x = trained()
    model.eval()
    before = model(x).detach()
    kernel = empirical_adam_ntk(model, x, outputs="all")
    lr = 1e-6
    predicted = -lr * torch.einsum("abop,bp->ao", kernel, 2 * before)
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p -= lr * p.grad / (p.grad.abs() + 1e-8)
    torch.testing.assert_close(model(x).detach() - before, predicted, rtol=1e-3, atol=1e-9)


def test_gradients_are_needed():
    with pytest.raises(InputError, match="backward"):
        empirical_adam_ntk(nn.Linear(2, 1), torch.ones(1, 2))
