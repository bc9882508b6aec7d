"""When compiling the passes of a stack pays, and what happens if it fails."""

import time
from contextlib import suppress
from typing import Any

import pytest
import torch
from support.stacked_subjects import gpt
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from orderone.sweeping.stacked import Stack
from orderone.training.stacked import compile_pays, compiling
from orderone.training.stacked.batched_update import BatchedUpdate
from orderone.training.stacked.compile_pays import estimate, fused_bytes
from orderone.training.stacked.compiled_step import CompiledStep
from orderone.training.stacked.errors import NotCompiled
from orderone.training.stacked.traced import TracedPass

CUDA = torch.device("cuda")


def graph(function, *inputs):
    return make_fx(function)(*inputs).graph


def test_elementwise_operations_copies_and_reductions_are_counted():
    x = torch.ones(4, 8)

    def function(x):
        y = (x * 2).double()  # 128 + 128, 128 + 256
        return y.sum(0), y @ y.T, y.view(-1)  # 256 + 64, not fused, no bytes

    counted = [fused_bytes(node) for node in graph(function, x).nodes]
    assert sum(counted) == 256 + 384 + 320


def test_long_studies_pay_and_short_ones_do_not(monkeypatch):
    monkeypatch.setattr(compile_pays, "bandwidth", lambda device: 1e9)
    passes = graph(lambda x: x * 2 + 1, torch.ones(1000, 250))  # 4 MB, two operations
    cost = 2 * compile_pays.SECONDS_PER_OPERATION * compile_pays.MARGIN
    steps = int(cost / 4e-3)
    assert not estimate(passes, steps - 1, CUDA).pays
    assert estimate(passes, steps + 1, CUDA).pays
    assert not estimate(passes, 10**9, torch.device("cpu")).pays
    assert not estimate(passes, 0, CUDA).pays


def test_what_would_take_too_long_is_not_tried(monkeypatch):
    monkeypatch.setattr(compile_pays, "bandwidth", lambda device: 1e9)
    monkeypatch.setattr(compile_pays, "SECONDS_PER_OPERATION", 46.0)
    passes = graph(lambda x: x * 2 + 1, torch.ones(1000, 250))
    guess = estimate(passes, 10**9, CUDA)
    assert guess.saved > 1e3 * guess.cost
    assert not guess.pays


def small_stack() -> tuple[Stack, tuple[Tensor, Tensor]]:
    models = [nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 20)) for _ in range(2)]
    stack = Stack(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    x = torch.randint(0, 20, (2, 3, 5))
    return stack, (x, x)


def test_a_failed_compilation_leaves_the_traced_pass(monkeypatch):
    stack, batch = small_stack()
    traced = TracedPass(stack.losses_and_gradients, stack.tensors, batch)
    expected, _ = traced(stack.tensors, batch)

    def fails(*args):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compile_graph", fails)
    with pytest.raises(NotCompiled, match="no compiler"):
        traced.compile(stack.tensors, batch)
    losses, _ = traced(stack.tensors, batch)
    assert torch.equal(losses, expected)


def test_a_slow_compilation_is_stopped(monkeypatch):
    stack, batch = small_stack()

    def never_ends(*args):
        while True:
            with suppress(Exception):
                time.sleep(0.01)

    monkeypatch.setattr(compiling, "compile_graph", never_ends)
    monkeypatch.setattr(compiling, "LIMIT", 0.2)
    before = {name: x.clone() for name, x in stack.state().items()}
    started = time.monotonic()
    step = CompiledStep(stack, batch)
    assert time.monotonic() - started < 30
    assert not step.compiled
    assert step.compile_error is not None
    assert all(torch.equal(x, before[name]) for name, x in stack.state().items())
    losses = step(batch, factor=0.5)
    stack.load(before)
    assert torch.equal(losses, stack.step(batch, factor=0.5))


def test_updates_can_be_compiled_later():
    models = [gpt(16) for _ in range(2)]
    stack = Stack(models, [torch.optim.SGD(model.parameters(), lr=0.1) for model in models])
    assert not stack.optimizer.compile
    stack.compile_updates()
    assert stack.optimizer.compile


def test_every_stack_compiles_its_own_updates():
    codes = []
    for _ in range(2):
        model = gpt(16)
        stack = Stack([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
        stack.compile_updates()
        for part in stack.optimizer.parts:
            assert isinstance(part, BatchedUpdate)
            compiled: Any = part._apply
            codes.append(compiled.__wrapped__.__code__)
    first, second = codes
    assert first is not second
