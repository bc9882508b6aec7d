"""Operations that torch.vmap refuses: in a stack their results equal those of stand-alone runs."""

# pyright: reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.sweeping.stacked import NotStackable, Stack

MEMBERS = 3


class OldStyle(torch.autograd.Function):
    """Function without a vmap rule, as most are written."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.power * x ** (ctx.power - 1), None


def written_into_new_tensor(x: Tensor) -> Tensor:
    state = torch.zeros(x.shape, dtype=x.dtype)
    state += x
    state[:, 0] = x[:, 1]
    other = torch.ones_like(torch.zeros(x.shape, dtype=x.dtype))
    other.copy_(x)
    return torch.tanh(state * other)


def selected(x: Tensor) -> Tensor:
    """Return a matrix that depends on how many entries are positive, which differs by member."""
    chosen = x.masked_select(x > 0)
    places = (x > 0.5).nonzero()
    return x * chosen.mean() + x[x > 0].sum() + len(places)


def repeated(x: Tensor) -> Tensor:
    counts = (x[:, 0] > 0).long() + 1
    return x + x.repeat_interleave(counts, 0).mean(0)


def frozen_by_keyword(x: Tensor) -> Tensor:
    return x + x.detach().requires_grad_(requires_grad=False)


def experts(x: Tensor) -> Tensor:
    """Multiply the rows by one of two matrices, chosen by their first entry."""
    chosen = (x[:, 0] > 0).long()
    order = chosen.sort(stable=True).indices
    counts = torch.histc(chosen.float(), 2, 0, 1)
    weights = torch.stack([torch.eye(8), 2 * torch.eye(8)]).to(torch.bfloat16)
    rows = x[order].to(torch.bfloat16)
    ends = counts.cumsum(0).to(torch.int32)
    return functional.grouped_mm(rows, weights * x[0, 0].to(weights), offs=ends).to(x.dtype)


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "autograd function": lambda x: OldStyle.apply(x, 3),
    "new tensors": written_into_new_tensor,
    "selection": selected,
    "repetition": repeated,
    "requires_grad_": frozen_by_keyword,
    "experts": experts,
}


class Model(nn.Module):
    def __init__(self, operation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.operation(self.first(x)))


def built(operation: Callable[[Tensor], Tensor]) -> list[nn.Module]:
    models: list[nn.Module] = []
    for seed in range(MEMBERS):
        torch.manual_seed(seed)
        models.append(Model(operation))
    return models


def stacked(models: list[nn.Module]) -> Stack:
    return Stack(models, [torch.optim.SGD(m.parameters(), lr=0.1) for m in models])


@pytest.mark.parametrize("name", OPERATIONS)
def test_losses_are_those_of_stand_alone_runs(name):
    models = built(OPERATIONS[name])
    single = copy.deepcopy(models)
    stack = stacked(models)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in single]
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        x = torch.randn(MEMBERS, 16, 6, generator=generator)
        y = torch.randint(3, (MEMBERS, 16), generator=generator)
        together = stack.step((x, y))
        for k, (model, optimizer) in enumerate(zip(single, optimizers, strict=True)):
            loss = functional.cross_entropy(model(x[k]), y[k])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert float(together[k]) == pytest.approx(float(loss), rel=1e-5)


def into_a_view(x: Tensor) -> Tensor:
    """Write into a tensor that has a view: the view must see it."""
    state = torch.zeros(x.shape)
    row = state[0]
    state += x
    return x + row


CONSTANT = torch.zeros(16, 8)


def into_a_constant(x: Tensor) -> Tensor:
    """Write into a tensor that is older than the pass: the next pass would see it."""
    CONSTANT.copy_(x.detach())
    return x + CONSTANT


@pytest.mark.parametrize("operation", [into_a_view, into_a_constant])
def test_writes_that_would_be_lost_are_refused(operation):
    stack = stacked(built(operation))
    batch = torch.randn(MEMBERS, 16, 6), torch.zeros(MEMBERS, 16, dtype=torch.long)
    with pytest.raises(NotStackable):
        stack.step(batch)
