"""A traced pass computes what the stack computes, and never repeats a decision on values."""

import copy

import pytest
import torch
from support import hf_families
from torch import Tensor, nn
from torch.nn import functional

from orderone.sweeping.stacked import Stack
from orderone.training.stacked.errors import NotCapturable
from orderone.training.stacked.tables import Rows, rows_of_tables
from orderone.training.stacked.traced import TracedPass

MEMBERS = 3


def stack_of(model: nn.Module, precision: torch.dtype | None = None) -> Stack:
    models = [copy.deepcopy(model) for _ in range(MEMBERS)]
    for member in models:
        for p in member.parameters():
            nn.init.normal_(p, std=0.1)
    optimizers = [torch.optim.SGD(member.parameters(), lr=0.1) for member in models]
    return Stack(models, optimizers, precision=precision)


def numbers(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(MEMBERS, 5, 4, generator=generator)
    return x, torch.randint(3, (MEMBERS, 5), generator=generator)


def words(family: str, seed: int) -> dict[str, Tensor]:
    batches = [hf_families.batch_of(family)(seed, member) for member in range(MEMBERS)]
    return {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}


def traced(stack: Stack, batch: object) -> TracedPass:
    stack.losses_and_gradients(stack.tensors, batch)  # as before a capture
    return TracedPass(stack.losses_and_gradients, stack.tensors, batch)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_traced_passes_of_hugging_face_models(family, precision):
    stack = stack_of(hf_families.build(family, 16), precision)
    run = traced(stack, words(family, 0))
    stack.step(words(family, 1))  # parameters are inputs, not constants
    batch = words(family, 2)
    losses, gradients = run(stack.tensors, batch)
    expected, expected_gradients = stack.losses_and_gradients(stack.tensors, batch)
    assert torch.equal(losses, expected)
    assert list(gradients) == list(expected_gradients)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, expected_gradients[name])


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


def test_buffers_are_written():
    stack = stack_of(Small())
    other = stack_of(Small())
    other.load(stack.state())
    run = traced(stack, numbers(0))
    stack.load(other.state())
    run(stack.tensors, numbers(1))
    other.losses_and_gradients(other.tensors, numbers(1))
    for name, buffer in stack.buffers.items():
        assert torch.equal(buffer, other.buffers[name])
    assert float(stack.buffers["norm.running_mean"].abs().sum()) > 0


class Decides(Small):
    """Model whose way depends on `subject`, a function of the input."""

    def __init__(self, subject) -> None:
        super().__init__()
        self.subject = subject

    def forward(self, x: Tensor) -> Tensor:
        if self.subject(x):
            x = 2 * x
        return self.linear(x)


def of_written_memory(x: Tensor) -> Tensor:
    known = torch.zeros(4)
    known[:2] = x.detach().flatten()[:2]
    return known.sum() > 1e9


@pytest.mark.parametrize(
    "subject",
    [
        lambda x: x.sum() > 1e9,
        lambda x: bool((x * torch.arange(4)).sum() > 1e9),
        lambda x: torch.rand(()) > 0.9,
        lambda x: torch.rand(()).mul(2) > 1,
        lambda x: torch.randn(()) > 2,
        lambda x: len(torch.nonzero(x[0, 0] > 1e9)) > 0,
        of_written_memory,
    ],
)
def test_decisions_that_may_change_are_refused(subject):
    with pytest.raises(NotCapturable):
        traced(stack_of(Decides(subject)), numbers(0))


@pytest.mark.parametrize(
    "subject",
    [
        lambda x: torch.arange(x.shape[-1]).sum() > 5,
        lambda x: (torch.ones(3).cumsum(0)[-1] == 3).all(),
        lambda x: torch.tensor([1.0, 2.0]).max() > 1,
        lambda x: torch.rand([]) < 0.0,  # a layer that is skipped with probability 0
        lambda x: torch.empty(3).uniform_(0, 1)[1] <= 1.0,
    ],
)
def test_decisions_that_are_always_the_same_are_kept(subject):
    stack = stack_of(Decides(subject))
    run = traced(stack, numbers(0))
    losses, _ = run(stack.tensors, numbers(1))
    assert torch.equal(losses, stack.losses_and_gradients(stack.tensors, numbers(1))[0])


@pytest.mark.parametrize("rows", [7, 100])
def test_gradients_of_stacked_tables(rows):
    tables = torch.randn(MEMBERS, rows, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(rows, (MEMBERS, 4, 9))
    places = ids + rows * torch.arange(MEMBERS).view(-1, 1, 1)
    weights = torch.randn(MEMBERS, 4, 9, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([functional.embedding(i, t) for i, t in zip(ids, tables, strict=True)])
    of_expected = torch.autograd.grad((expected * weights).sum(), tables, create_graph=True)[0]
    for found in (rows_of_tables(tables, ids), Rows.apply(tables, places)):
        assert torch.equal(found, expected)
        gradient = torch.autograd.grad((found * weights).sum(), tables, create_graph=True)[0]
        assert torch.allclose(gradient, of_expected, rtol=1e-12, atol=1e-12)
        second, of_second = (
            torch.autograd.grad((g * g).sum(), weights, retain_graph=True)[0]
            for g in (gradient, of_expected)
        )
        assert torch.allclose(second, of_second, rtol=1e-12, atol=1e-12)
