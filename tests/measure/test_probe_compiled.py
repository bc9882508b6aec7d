"""The probe and compiled models."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from probe_oracle import (
    IGNORE_GRAD_WARNING,
    Attends,
    Shared,
    adamw,
    batch,
    squares,
    table,
    train,
    twins,
)
from torch import Tensor

import orderone as o1
from orderone.measure.recording import QUANTITIES


def counting() -> tuple[Callable[..., Any], list[int]]:
    compiled = []

    def backend(graph: Any, example: Any) -> Any:
        compiled.append(1)
        return graph.forward

    return backend, compiled


@IGNORE_GRAD_WARNING
@pytest.mark.parametrize("way", ["torch.compile", "model.compile", "part"])
@pytest.mark.parametrize("used_before", [True, False])
def test_compiled_models_give_the_same_records_and_stay_compiled(way, used_before):
    torch._dynamo.reset()
    model, plain = twins(Shared)
    backend, compiled = counting()
    watched: Any = model
    if way == "torch.compile":
        watched = torch.compile(model, backend=backend)
    elif way == "model.compile":
        model.compile(backend=backend)
    else:
        model.layer = torch.compile(model.layer, backend=backend)
    if used_before:
        squares(watched, 7).backward()
        assert compiled
    model.zero_grad()
    before = len(compiled)
    frame = train(watched, adamw(watched), batch=batch(9, 5, 6), quantities=QUANTITIES)
    assert len(compiled) == before
    pd.testing.assert_frame_equal(
        frame, train(plain, adamw(plain), batch=batch(9, 5, 6), quantities=QUANTITIES)
    )
    squares(watched, 7).backward()
    assert len(compiled) == before if used_before else compiled


@IGNORE_GRAD_WARNING
def test_a_model_stays_compiled_where_only_tensors_are_recorded():
    torch._dynamo.reset()
    backend, compiled = counting()
    model, plain = twins(Shared)
    watched: Any = torch.compile(model, backend=backend)
    quantities = ["weight", "gradient", "update"]
    frame = train(watched, adamw(watched), quantities=quantities)
    assert len(compiled) == 1
    wanted = table(train(plain, adamw(plain), quantities=quantities))
    assert table(frame).keys() == wanted.keys()
    for key, found in table(frame).items():
        assert found == pytest.approx(wanted[key], rel=1e-4, abs=1e-6)


@IGNORE_GRAD_WARNING
def test_scores_alone_are_recorded_in_a_compiled_model():
    torch._dynamo.reset()
    model: Any = torch.compile(Attends(), backend="eager")
    squares(model, 0)
    assert len(train(model, adamw(model), quantities="scores")) == 2


def steps_of(frame: pd.DataFrame, quantity: str) -> list[int]:
    return sorted(set(frame[frame.quantity == quantity].step))


@IGNORE_GRAD_WARNING
def test_steps_that_record_nothing_run_compiled():
    torch._dynamo.reset()
    backend, compiled = counting()
    model, plain = twins(Shared)
    watched: Any = torch.compile(model, backend=backend)
    calls: list[int] = []
    optimizer = adamw(watched)
    with o1.probe(watched, optimizer=optimizer, every=3) as p:
        for step in range(7):
            before = len(compiled)
            model.zero_grad()
            squares(watched, step).backward()
            optimizer.step()
            if len(compiled) > before:
                calls.append(step)
            hooks = sum(len(module._forward_hooks) for module in model.modules())
            assert bool(hooks) == ((step + 1) % 3 == 0)
    assert calls == [1, 3]  # a program without records, and one with records
    other = adamw(plain)
    with o1.probe(plain, optimizer=other, every=3) as expected:
        for step in range(7):
            plain.zero_grad()
            squares(plain, step).backward()
            other.step()
    assert steps_of(p.frame, "output") == steps_of(p.frame, "update") == [0, 3, 6]
    found = table(p.frame)
    wanted = table(expected.frame)
    assert found.keys() == wanted.keys()
    for key, value in found.items():
        assert value == pytest.approx(wanted[key], rel=1e-4, abs=1e-6)


@IGNORE_GRAD_WARNING
@pytest.mark.parametrize("used_before", [True, False])
def test_a_compiled_training_step_is_recorded(used_before):
    """A program that includes the optimizer would not call its hooks: it runs uncompiled."""
    torch._dynamo.reset()
    model = Shared()
    optimizer = adamw(model)

    def train_step(x: Tensor) -> None:
        model.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step: Any = torch.compile(train_step, backend="eager")
    if used_before:
        step(batch(7, 5, 6))
    with o1.probe(model, optimizer=optimizer, every=2) as p:
        for seed in range(5):
            step(batch(seed, 5, 6))
    assert steps_of(p.frame, "output") == steps_of(p.frame, "update") == [0, 2, 4]
