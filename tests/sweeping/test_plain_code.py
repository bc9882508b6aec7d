"""Long trainings on a CPU repeat traced passes, if the code cannot change from step to step."""

import itertools
import math
import random
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.sweep_subjects import batch, changed, mlp
from torch import Tensor, nn
from torch.nn import functional

from orderone.nn import GPT
from orderone.sweeping import sweep
from orderone.sweeping.stacked import training
from orderone.training.stacked.compiled_step import TracedPassesStep
from orderone.training.stacked.plain_code import is_plain

SCALE = 0.5
CALLS = [0]
NUMBERS = itertools.count()
SETTINGS = SimpleNamespace(scale=1.0)


def scaled(x: Tensor, by: float = SCALE) -> Tensor:
    return by * x


def scaled_by_calls(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output * CALLS[0]


class Plain(nn.Module):
    """Model of a user with helpers, attributes, loops and decisions that stay the same."""

    act = nn.ReLU

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.sizes = (width, 3)
        self.f = functional.gelu
        self.layers = nn.ModuleList([nn.Linear(4, width), nn.Linear(width, 3)])

    def forward(self, x: Tensor) -> Tensor:
        first, last = self.layers
        h = self.f(first(x))
        parts = []
        for part in h.chunk(2, dim=-1):
            parts.append(scaled(part) * math.sqrt(self.width))
        h = torch.cat(parts, dim=-1)
        if not isinstance(h, Tensor):
            raise ValueError("no tensor")
        return self._out(last, h)

    def _out(self, layer: nn.Module, h: Tensor) -> Tensor:
        return layer(h).reshape(-1, self.sizes[1])


def variant(forward: Any, **attributes: Any) -> nn.Module:
    """Return a plain model with another `forward` and more attributes."""
    kind = type("Variant", (Plain,), {"forward": forward})
    model = kind(8)
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def counts_attribute(self: Any, x: Tensor) -> Tensor:
    self.calls = 1
    return Plain.forward(self, x)


def counts_global(self: Any, x: Tensor) -> Tensor:
    CALLS[0] += 1
    return Plain.forward(self, x)


def next_number(self: Any, x: Tensor) -> Tensor:
    return Plain.forward(self, x) * next(NUMBERS)


def python_random(self: Any, x: Tensor) -> Tensor:
    return Plain.forward(self, x) * random.random()


def numpy_random(self: Any, x: Tensor) -> Tensor:
    return Plain.forward(self, x) * float(np.random.rand())


def the_time(self: Any, x: Tensor) -> Tensor:
    return Plain.forward(self, x) * time.time()


def reads_settings(self: Any, x: Tensor) -> Tensor:
    return Plain.forward(self, x) * SETTINGS.scale


def imports(self: Any, x: Tensor) -> Tensor:
    import random as other

    return Plain.forward(self, x) * other.random()


def by_name(self: Any, x: Tensor) -> Tensor:
    setattr(self, "calls", 1)  # noqa: B010
    return Plain.forward(self, x)


def default_list(self: Any, x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
    seen.append(1)
    return Plain.forward(self, x)


def with_closure() -> Any:
    count = 0

    def forward(self: Any, x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return Plain.forward(self, x)

    return forward


def with_other_module() -> Any:
    other = nn.Dropout(0.5)

    def forward(self: Any, x: Tensor) -> Tensor:
        return other(Plain.forward(self, x))

    return forward


NOT_PLAIN = [
    *(counts_attribute, counts_global, next_number, python_random, numpy_random, the_time),
    *(reads_settings, imports, by_name, default_list, with_closure(), with_other_module()),
]


@pytest.mark.parametrize("forward", NOT_PLAIN, ids=range(len(NOT_PLAIN)))
def test_code_that_can_change_is_not_plain(forward):
    assert not is_plain(variant(forward))


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, itertools.count(), np.random.default_rng(0), lambda: CALLS[0]]
)
def test_attributes_that_can_change_are_not_plain(value):
    assert not is_plain(variant(Plain.forward, held=value))


def test_attributes_of_classes_that_can_change_are_not_plain():
    class Appends(Plain):
        seen: list[int] = []  # noqa: RUF012

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(1)
            return super().forward(x) * len(self.seen)

    assert not is_plain(Appends(8))


def test_hooks_and_replaced_functions_of_users_are_not_plain():
    model = mlp(8)
    assert is_plain(model)
    model.get_submodule("0").register_forward_hook(scaled_by_calls)
    assert not is_plain(model)
    model = mlp(8)
    model.get_submodule("0").forward = lambda x: CALLS[0] * x
    assert not is_plain(model)


@pytest.mark.parametrize(
    "model", [mlp(8), Plain(8), GPT(vocab=8, length=4, width=8, heads=2, depth=1)]
)
def test_usual_models_are_plain(model):
    assert is_plain(model)


def plain_loss(output: Tensor, targets: Any) -> Tensor:
    return functional.cross_entropy(output, targets[1], label_smoothing=0.1)


def counting_loss(output: Tensor, targets: Any) -> Tensor:
    CALLS[0] += 1
    return functional.cross_entropy(output, targets[1])


def test_losses_are_read_too():
    assert is_plain(Plain(8), plain_loss)
    assert is_plain(Plain(8), nn.CrossEntropyLoss())
    assert is_plain(Plain(8), partial(functional.cross_entropy, label_smoothing=0.1))
    assert not is_plain(Plain(8), counting_loss)
    assert not is_plain(Plain(8), nn.BatchNorm1d(3))


# --- sweeps ---------------------------------------------------------------------------------------

CALL: dict[str, Any] = {
    "space": {"lr": [1e-3, 1e-2, 3e-2], "seed": range(2)},
    "data": batch,
    "steps": 30,
    "widths": [8],
    "stacked": True,
    "executor": "here",
    "device": "cpu",
}


@pytest.fixture
def traced(monkeypatch):
    """Trace trainings of any length; return the steps that were made by traced passes."""
    monkeypatch.setattr(training, "WORTH_TRACING", 1)
    steps: list[int] = []
    call = TracedPassesStep.__call__

    def counted(self: TracedPassesStep, *batches: Any, factor: float | None = None) -> Tensor:
        steps.append(1)
        return call(self, *batches, factor=factor)

    monkeypatch.setattr(TracedPassesStep, "__call__", counted)
    return steps


def both(monkeypatch: Any, **call: Any) -> tuple[Any, Any]:
    """Return the sweep with traced passes, and without."""
    with_lists = sweep(**call)
    monkeypatch.setattr(training, "WORTH_TRACING", 10**9)
    return with_lists, sweep(**call)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bfloat16"},
        {"accumulate": 2, "clip": 0.1, "schedule": "cosine", "warmup": 3},
        {"optimizer": "muon"},
    ],
    ids=["float32", "bfloat16", "accumulated", "Muon"],
)
def test_traced_passes_have_the_losses_of_the_stack(traced, monkeypatch, options):
    found, expected = both(monkeypatch, build=Plain, **CALL | options)
    assert len(traced) > 20
    assert found.verified[0].last == "agrees"
    for key, outcome in expected.outcomes.items():
        np.testing.assert_allclose(found.outcomes[key].losses, outcome.losses, rtol=1e-6)


def with_norm(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def test_buffers_are_updated_by_traced_passes(traced, monkeypatch):
    held_out = [batch(0, 99)]
    found, expected = both(
        monkeypatch, build=with_norm, held_out=held_out, evaluate_every=10, **CALL
    )
    assert traced
    for key, outcome in expected.outcomes.items():
        np.testing.assert_allclose(found.outcomes[key].losses, outcome.losses, rtol=1e-6)
        np.testing.assert_allclose(found.outcomes[key].evaluation, outcome.evaluation, rtol=1e-6)


def test_members_that_diverge_or_stop_leave_a_traced_stack(traced, monkeypatch):
    space = {"lr": [1e-3, 1e-2, 1e30], "seed": range(2)}
    found, expected = both(monkeypatch, build=Plain, optimizer="sgd", **changed(CALL, space=space))
    assert traced
    assert list(found.frame["status"]) == list(expected.frame["status"])
    assert "diverged" in set(found.frame["status"])
    for key, outcome in expected.outcomes.items():
        np.testing.assert_allclose(found.outcomes[key].losses, outcome.losses, rtol=1e-6)


def annealed(width: int) -> nn.Module:
    model = Plain(width)
    variant_class = type("Variant", (Plain,), {"forward": counts_attribute})
    model.__class__ = variant_class
    return model


@pytest.mark.parametrize("build", [annealed, lambda width: mlp(width, dropout=0.5)])
def test_other_models_train_as_before(traced, build):
    sweep(build, name="n", **changed(CALL, stacked="auto"))
    assert not traced


def test_batches_of_other_shapes_are_not_traced(traced, monkeypatch):
    def data(step: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y = batch(step, seed)
        size = 8 - step % 2
        return x[:size], y[:size]

    found, expected = both(monkeypatch, build=Plain, name="n", **changed(CALL, data=data))
    for key, outcome in expected.outcomes.items():
        np.testing.assert_allclose(found.outcomes[key].losses, outcome.losses, rtol=1e-6)


def test_a_short_training_is_not_traced(traced, monkeypatch):
    monkeypatch.setattr(training, "WORTH_TRACING", 250)
    sweep(Plain, **CALL)
    assert not traced


def test_without_a_proof_nothing_is_traced(traced):
    sweep(Plain, verify=False, **CALL)
    assert not traced
