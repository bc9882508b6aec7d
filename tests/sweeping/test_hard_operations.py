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
from orderone.torch_compat import TorchDispatchMode
from orderone.training.stacked.experts import each_expert

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
            assert float(together[k]) == pytest.approx(loss.item(), rel=1e-5)


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


class Counted(TorchDispatchMode):
    """Mode that counts the grouped products."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += "grouped_mm" in str(func)
        return func(*args, **(kwargs or {}))


def test_experts_of_all_members_are_multiplied_in_one_call():
    stack = stacked(built(experts))
    batch = (torch.randn(MEMBERS, 16, 6), torch.randint(3, (MEMBERS, 16)))
    with Counted() as counted, torch.no_grad():
        stack.program.losses(stack.tensors, batch)
    assert counted.products == 1


def test_each_expert_takes_its_rows():
    ends = torch.tensor([[2, 2, 7], [0, 4, 7]], dtype=torch.int32)
    rows = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    expected: list[Tensor] = []
    for member in range(2):
        first = 0
        for expert, end in enumerate(ends[member].tolist()):
            expected.append(rows[member, first:end] @ weights[member, expert])
            first = end
    whole = torch.cat(expected)
    found = each_expert(rows, weights, ends).flatten(0, 1)
    assert torch.allclose(found, whole, rtol=1e-12)
    factors = torch.randn_like(whole)
    of_found = torch.autograd.grad((found * factors).sum(), (rows, weights))
    of_whole = torch.autograd.grad((whole * factors).sum(), (rows, weights))
    for one, other in zip(of_found, of_whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-12)
