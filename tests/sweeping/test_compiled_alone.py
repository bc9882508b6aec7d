"""Trainings that cannot be stacked or captured are compiled if that is faster and changes nothing.

The compiler that makes kernels takes a minute, so most tests use torch.compile without it.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import orderone as o1
from orderone.training import compiled_pass
from orderone.training.compiled_pass import LAUNCH, Estimate, _Counter, _Trial
from orderone.training.stacked.compile_pays import SECONDS_PER_OPERATION

INPUTS, CLASSES = 6, 3


class Deciding(nn.Module):
    """Model that decides on a value, draws random numbers and changes buffers."""

    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(INPUTS, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if float(h.detach().sum()) > 1e9:
            h = h * 0
        h = self.norm(h)
        return self.head(self.drop(torch.tanh(h)))


class Counting(Deciding):
    """Model that counts its passes, and uses their number."""

    def __init__(self, width: int):
        super().__init__(width)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(x) * (1 + self.passes % 3)


def batch(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * seed + step)
    x = torch.randn(16, INPUTS, generator=generator)
    return x, torch.randint(CLASSES, (16,), generator=generator)


def losses(compile: bool | None, build: Any = Deciding, **options: Any):
    return o1.sweep(
        build,
        space={"lr": [1e-3, 1e-2], "seed": range(2)},
        widths=[8],
        data=batch,
        steps=5,
        stacked=False,
        device="cpu",
        compile=compile,
        progress=False,
        **options,
    )


def assert_same(found: o1.Sweep, wanted: o1.Sweep) -> None:
    for key, outcome in found.outcomes.items():
        np.testing.assert_allclose(outcome.losses, wanted.outcomes[key].losses, rtol=1e-6)


@pytest.fixture
def decided(monkeypatch) -> list[object]:
    """Let torch.compile run without its compiler of kernels; return the decisions that are made."""
    made: list[object] = []
    decide = compiled_pass.decide

    def without_kernels(module):
        return torch.compile(module, backend="eager")

    def noted(*args):
        made.append(decide(*args))
        return made[-1]

    monkeypatch.setattr(compiled_pass, "compiled_forward", without_kernels)
    monkeypatch.setattr(compiled_pass, "decide", noted)
    monkeypatch.setattr(compiled_pass, "AGAIN", 1e9)
    torch.compiler.reset()
    return made


def times(monkeypatch, before: float, after: float) -> None:
    def seconds(self, forward):
        return before if forward is None else after

    monkeypatch.setattr(_Trial, "seconds", seconds)


def test_compiled_trainings_have_the_same_losses(monkeypatch, decided):
    times(monkeypatch, 2.0, 1.0)
    found = losses(True)
    assert len(decided) == 1  # once for four trainings
    assert {o.facts["compiled"] for o in found.outcomes.values()} == {True}
    assert_same(found, losses(False))
    note = " ".join(found.notes)
    assert note.count("width 8 compiled in") == 1
    assert "1e+03 ms instead of 2e+03 ms" in note


def test_what_is_not_faster_is_not_used(monkeypatch, decided):
    times(monkeypatch, 1.0, 1.0)
    found = losses(True)
    assert len(decided) == 1
    assert {o.facts["compiled"] for o in found.outcomes.values()} == {False}
    assert_same(found, losses(False))
    assert "a compiled pass would take" in " ".join(found.notes)


class _Wrong(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x) * 1.001


def test_what_computes_something_else_is_not_used(monkeypatch, decided):
    times(monkeypatch, 2.0, 1.0)
    monkeypatch.setattr(compiled_pass, "compiled_forward", _Wrong)
    found = losses(True)
    assert {o.facts["compiled"] for o in found.outcomes.values()} == {False}
    assert_same(found, losses(False))
    assert "other losses or gradients" in " ".join(found.notes)


def test_passes_that_cannot_be_compared_are_not_compiled(monkeypatch, decided):
    times(monkeypatch, 2.0, 1.0)
    found = losses(True, Counting)
    assert {o.facts["compiled"] for o in found.outcomes.values()} == {False}
    assert_same(found, losses(False, Counting))
    assert "passes differ from one to the next" in " ".join(found.notes)


def test_a_compiler_that_fails_leaves_a_note(monkeypatch, decided):
    class Fails(nn.Module):
        def __init__(self, module: nn.Module):
            super().__init__()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no compiler on this machine")

    monkeypatch.setattr(compiled_pass, "compiled_forward", Fails)
    found = losses(True)
    assert_same(found, losses(False))
    assert "torch.compile failed: RuntimeError: no compiler on this machine" in " ".join(
        found.notes
    )


def test_models_that_are_compiled_again_each_time_are_not_compiled(monkeypatch, decided):
    times(monkeypatch, 2.0, 1e-9)
    monkeypatch.setattr(compiled_pass, "AGAIN", 0.0)  # every pass looks like a compilation
    found = losses(True)
    used = [outcome.facts["compiled"] for outcome in found.outcomes.values()]
    assert used == [True, True, False, False]
    assert "would be compiled again" in " ".join(found.notes)


def test_programs_for_single_values_are_not_used(monkeypatch, decided):
    """Without symbolic numbers, a model that reads a value is compiled for each value."""
    times(monkeypatch, 2.0, 1.0)

    def for_each_value(module):
        return torch.compile(module, backend="eager", dynamic=False)

    monkeypatch.setattr(compiled_pass, "compiled_forward", for_each_value)
    found = losses(True)
    assert_same(found, losses(False))
    assert "compiled again and again" in " ".join(found.notes)


def test_a_cpu_compiles_nothing_by_itself(decided):
    found = losses(None)
    assert not decided
    assert "compiled" not in next(iter(found.outcomes.values())).facts
    assert not [note for note in found.notes if note.startswith("compile")]


@pytest.mark.parametrize(("tenfold", "pays"), [(0, False), (1, True)])
def test_a_study_has_to_be_long_enough(tenfold, pays):
    """Two of three operations are fused; each saves a launch in every pass."""
    counter = _Counter(torch.device("cpu"))
    counter._bandwidth = 1e12
    with counter:
        torch.tanh(torch.ones(4, 4) @ torch.ones(4, 4)).add(1)
    fused = counter.saved / LAUNCH
    assert fused == pytest.approx(2)
    cost = SECONDS_PER_OPERATION * counter.operations
    break_even = cost / (2 * LAUNCH)
    passes = int(break_even * (0.9 + 10 * tenfold))
    assert Estimate(cost, passes * counter.saved, passes).pays == pays


@pytest.mark.slow
def test_with_the_real_compiler(monkeypatch):
    times(monkeypatch, 2.0, 1.0)
    torch.compiler.reset()
    found = losses(True)
    assert {o.facts["compiled"] for o in found.outcomes.values()} == {True}
    assert_same(found, losses(False))
