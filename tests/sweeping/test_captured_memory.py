"""A captured step owns the memory that its graph reads; without a GPU, graphs are stand-ins."""

import gc
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from unittest.mock import create_autospec

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from orderone.sweeping.stacked import CapturedStep, Stack
from orderone.training.stacked import graph, traced, traced_step


@contextmanager
def not_captured(recorded: object, stream: object):
    yield


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = create_autospec(torch.cuda.Stream, instance=True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(graph, "captured_by", not_captured)
    monkeypatch.setattr(traced_step, "compiled", lambda operations, inputs: operations)


class Shifted(nn.Module):
    """Model that makes a tensor from numbers in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + torch.tensor([0.5, 1.0, 1.5, 2.0]))


@pytest.mark.parametrize("compile", [False, True])
def test_constants_of_a_captured_step_live_as_long_as_it(compile, without_cuda, monkeypatch):
    read: list[StorageWeakRef] = []
    inputs_of = traced_step.TracedStep._inputs
    pass_inputs_of = traced.TracedPass._inputs

    def remember(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        read[:] = [StorageWeakRef(x.untyped_storage()) for x in inputs]
        return inputs

    monkeypatch.setattr(
        traced_step.TracedStep, "_inputs", lambda self, batch: remember(inputs_of(self, batch))
    )
    monkeypatch.setattr(
        traced.TracedPass,
        "_inputs",
        lambda self, tensors, batch: remember(pass_inputs_of(self, tensors, batch)),
    )
    models = [Shifted() for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    stack = Stack(models, optimizers, compile=compile)
    step = CapturedStep(stack, (torch.randn(2, 5, 4), torch.randint(3, (2, 5))))
    gc.collect()
    assert step.compiled == compile
    assert step.traced
    assert read
    assert not any(memory.expired() for memory in read)
