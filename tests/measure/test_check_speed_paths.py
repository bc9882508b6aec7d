"""What makes a check fast does not change its numbers: shared states, and sizes piece by piece."""

# pyright: reportCallIssue=false
# pyright: reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import orderone as o1
from orderone.measure import kept_memory as kept
from orderone.measure import spare_state
from orderone.measure.spare_state import SpareState
from orderone.observe import hooks, moments
from orderone.observe.moments import Moments

WIDTHS = (32, 64, 288)  # the tensors of the largest have several pieces


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )


def check(**options: object) -> o1.measure.Check:
    torch.manual_seed(0)
    batch = torch.randn(16, 20), torch.randint(0, 4, (16,))
    return o1.coord_check(
        build, WIDTHS, **{"lr": 1e-2, "batches": batch, "steps": 3, "seeds": 3, **options}
    )


def whole(count: int, x: Tensor) -> Moments:
    """Size a tensor in one piece and in double precision."""
    values = x.double().numpy().ravel()
    squares, largest = float(values @ values), float(np.abs(values).max())
    return Moments(count, squares, float(values.sum()), largest, float(count))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_shared_state_changes_no_bit(monkeypatch, optimizer, weight_decay):
    lent: list[bool] = []
    lend = SpareState.lend

    def counted(self: SpareState, made: torch.optim.Optimizer) -> None:
        lend(self, made)
        lent.append(bool(made.state))

    monkeypatch.setattr(SpareState, "lend", counted)
    shared = check(optimizer=optimizer, weight_decay=weight_decay)
    assert lent == [False, True, True]
    monkeypatch.setattr(SpareState, "lend", lambda self, made: None)
    fresh = check(optimizer=optimizer, weight_decay=weight_decay)
    assert shared.frame.equals(fresh.frame)
    assert shared.losses.equals(fresh.losses)
    assert shared.exponents.equals(fresh.exponents)


def test_records_and_verdicts_are_those_of_sizes_in_double_precision(monkeypatch):
    fast = check()
    monkeypatch.setattr(moments, "_here", whole)
    exact = check()
    keys = ["width", "seed", "step", "module", "quantity"]
    assert fast.frame[keys].equals(exact.frame[keys])
    assert np.allclose(fast.frame["rms"], exact.frame["rms"], rtol=1e-6)
    assert fast.frame["max"].equals(exact.frame["max"])
    assert np.allclose(fast.frame["mean"], exact.frame["mean"], rtol=0, atol=1e-6 * fast.frame.rms)
    assert fast.exponents.verdict.equals(exact.exponents.verdict)
    for line, other in zip(fast.judgements, exact.judgements, strict=True):
        assert line.exponent == pytest.approx(other.exponent, abs=1e-6, nan_ok=True)


def trained(model: nn.Module, kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.ones(2, 20)).square().mean().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("kind", sorted(spare_state.STARTS_AT_ZERO, key=lambda k: k.__name__))
def test_a_lent_state_is_zero_and_uses_the_same_memory(kind):
    spare = SpareState()
    first = trained(build(32), kind)
    places = {id(value) for state in first.state.values() for value in state.values()}
    spare.keep(first)
    second = kind(build(32).parameters(), lr=0.1)
    spare.lend(second)
    values = [value for state in second.state.values() for value in state.values()]
    assert {id(value) for value in values} == places
    assert all(math.isclose(float(value.abs().max()), 0.0) for value in values)
    third = kind(build(32).parameters(), lr=0.1)
    spare.lend(third)  # it is lent once
    assert not third.state


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (torch.optim.Adam, build(64)),
        (torch.optim.Adam, build(32).double()),
        (torch.optim.SGD, build(32)),
        (type("Mine", (torch.optim.Adam,), {}), build(32)),
    ],
)
def test_a_state_of_another_kind_is_not_lent(kind, other):
    spare = SpareState()
    spare.keep(trained(build(32), torch.optim.Adam))
    optimizer = kind(other.parameters(), lr=0.1)
    spare.lend(optimizer)
    assert not optimizer.state


# --- memory ---------------------------------------------------------------------------------------


class Library:
    """A C library that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def mallopt(self, parameter: int, value: int) -> None:
        self.calls.append((parameter, value))

    def malloc_trim(self, padding: int) -> None:
        self.calls.append((padding,))


ASKED = [
    (kept.M_MMAP_THRESHOLD, kept.LARGEST),
    (kept.M_TRIM_THRESHOLD, kept.UNLIMITED),
    (kept.M_TRIM_THRESHOLD, kept.USUAL),
    (0,),
]


def test_memory_is_kept_during_a_check_and_returned_afterwards(monkeypatch):
    library = Library()
    during: list[int] = []
    monkeypatch.setattr(kept, "_glibc", lambda: library)
    check(progress=lambda done, total, what: during.append(len(library.calls)))
    assert set(during) == {2}
    assert library.calls == ASKED


def test_memory_is_returned_after_an_error(monkeypatch):
    library = Library()
    monkeypatch.setattr(kept, "_glibc", lambda: library)

    def stop(done: int, total: int, what: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        check(progress=stop)
    assert library.calls == ASKED


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"])
def test_settings_of_the_user_are_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert kept._glibc() is None


def test_kept_memory_changes_no_bit(monkeypatch):
    first = check()
    monkeypatch.setattr(kept, "_glibc", lambda: None)
    second = check()
    assert first.frame.equals(second.frame)
    assert first.losses.equals(second.losses)


def test_passes_begin_without_gradients():
    """The memory of the gradients is free for the activations of the next pass."""
    seen: list[bool] = []

    class Watching(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                seen.append(any(p.grad is not None for p in self.parameters()))
            return super().forward(input)

    batch = torch.randn(16, 20), torch.randint(0, 4, (16,))
    o1.coord_check(
        lambda width: Watching(*build(width)), WIDTHS, lr=1e-2, batches=batch, steps=3, seeds=1
    )
    assert len(seen) >= 4 * len(WIDTHS)
    assert not any(seen)


# --- scores ---------------------------------------------------------------------------------------


def unmasked(scores: Tensor) -> Tensor:
    """Return the scores that are not masked, one by one."""
    values = scores.flatten().tolist()
    finite = [value for value in values if not math.isnan(value)]
    highest = max(finite, default=0.0)
    if len(finite) < len(values) or highest == math.inf:
        highest = torch.finfo(scores.dtype).min / 2 + hooks.NO_WEIGHT
    counted = [x for x in values if math.isnan(x) or x > highest - hooks.NO_WEIGHT]
    return torch.tensor(counted, dtype=scores.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, -1e9, -100.0, math.nan, math.inf, -math.inf])
def test_scores_are_those_without_a_mask(mask, dtype):
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 5, 5, dtype=dtype)
    if mask is not None:
        scores[..., 1, 2] = mask
    counted = hooks._unmasked(scores).flatten()
    assert torch.equal(counted.nan_to_num(7.0), unmasked(scores).nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_allowed_scores_are_those_below_the_diagonal(dtype):
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 3, 5, 4, dtype=dtype)
    counted = hooks._scores_of_fused(query, key, key, is_causal=True)
    below = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(counted.flatten(), (query @ key.mT * 0.5)[..., below].flatten())
