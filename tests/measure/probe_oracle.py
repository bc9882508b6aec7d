"""Oracle of the probe: the same records by plain hooks and copies, and trainings to compare."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.zoo import Entry
from torch import Tensor, nn

import orderone as o1

SIZES = ["rms", "mean", "max", "finite"]

IGNORE_GRAD_WARNING = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # dynamo hides it

Seen = dict[tuple[int, str, str], list[Tensor]]


def sizes(*parts: Tensor) -> list[float]:
    """Return rms, mean, largest and finite fraction of all entries, in double precision."""
    x = torch.cat([part.detach().double().flatten() for part in parts]).numpy()
    return [
        float(np.sqrt(np.mean(x**2))),
        float(x.mean()),
        float(np.abs(x).max()),
        float(np.isfinite(x).mean()),
    ]


def table(frame: pd.DataFrame) -> dict[tuple[int, str, str], list[float]]:
    assert not frame.duplicated(["step", "module", "quantity"]).any()
    return {
        (r["step"], r["module"], r["quantity"]): [r[s] for s in SIZES]
        for r in frame.to_dict("records")
    }


def agree(frame: pd.DataFrame, seen: Seen, rel: float = 1e-5) -> None:
    """Assert that frame and oracle have the same rows, with the same four numbers."""
    found = table(frame)
    assert found.keys() == seen.keys()
    for key, parts in seen.items():
        # a mean is a difference of large sums: its error is relative to the entries
        assert found[key] == pytest.approx(
            sizes(*parts), rel=rel, abs=rel * sizes(*parts)[0], nan_ok=True
        ), key


def main(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.dim() else None
    if getattr(value, "logits", None) is not None:
        return value.logits
    values = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, (tuple, list))
        else ()
    )
    return next((x for x in map(main, values) if x is not None), None)


@dataclass
class ByHand:
    """Oracle: hooks copy every tensor, gradients are retained, weights are copied at every step."""

    model: nn.Module
    seen: Seen
    step: int = 0

    @contextmanager
    def watch(self) -> Iterator["ByHand"]:
        self.given: list[tuple[str, Tensor]] = []
        hooks = []
        for name, module in self.model.named_modules():
            hooks.append(
                module.register_forward_pre_hook(
                    lambda m, a, k, n=name: self._in(n, (a, k)), with_kwargs=True
                )
            )
            hooks.append(module.register_forward_hook(lambda m, a, y, n=name: self._out(n, y)))
        yield self
        for hook in hooks:
            hook.remove()

    def add(self, name: str, quantity: str, x: Tensor) -> None:
        self.seen.setdefault((self.step, name, quantity), []).append(x.detach().clone())

    def _in(self, name: str, value: Any) -> None:
        if torch.is_grad_enabled() and (x := main(value)) is not None:
            self.add(name, "input", x)

    def _out(self, name: str, value: Any) -> None:
        if torch.is_grad_enabled() and (x := main(value)) is not None:
            self.add(name, "output", x)
            if x.requires_grad:
                x.retain_grad()
                self.given.append((name, x))

    def end(self, stepping: Callable[[], Any]) -> None:
        for name, x in self.given:
            if x.grad is not None:
                self.add(name, "output gradient", x.grad)
        self.given = []
        before = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            self.add(name, "weight", p)
            if p.grad is not None:
                self.add(name, "gradient", p.grad.to_dense())
        stepping()
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                self.add(name, "update", p.detach() - before[name])
        self.step += 1


def outputs(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
    """Return the outputs of every module in a pass without gradients."""
    found: dict[str, list[Tensor]] = {}

    def keep(name: str, y: Any) -> None:
        if (x := main(y)) is not None:
            found.setdefault(name, []).append(x.clone())

    hooks = [
        m.register_forward_hook(lambda m, a, y, n=n: keep(n, y)) for n, m in model.named_modules()
    ]
    with torch.no_grad():
        model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return found


def twins(build: Callable[[], Any]) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = build()
    return model, copy.deepcopy(model)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def compare(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, int], Tensor],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw,
    steps: int = 2,
    passes: int = 1,
    rel: float = 1e-5,
) -> Any:
    """Train one copy with the probe and one with the oracle; return the frame if both agree.

    `loss` is a function of the model and the number of the pass.
    """
    model, other = twins(build)
    stepper, seen = optimizer(model), {}
    with o1.probe(model, stepper) as p:
        for step in range(steps):
            stepper.zero_grad()
            for i in range(passes):
                loss(model, step * passes + i).backward()
            stepper.step()
    stepper = optimizer(other)
    with ByHand(other, seen).watch() as hand:
        for step in range(steps):
            stepper.zero_grad()
            for i in range(passes):
                loss(other, step * passes + i).backward()
            hand.end(stepper.step)
    agree(p.frame, seen, rel)
    return p.frame


def batch(number: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number))


def squares(model: nn.Module, number: int) -> Tensor:
    return model(batch(number, 5, 6)).square().mean()


def zoo_loss(entry: Entry) -> Callable[[nn.Module, int], Tensor]:
    def loss(model: nn.Module, number: int) -> Tensor:
        given = entry.batch(number)
        return entry.loss(model(**given), given)

    return loss


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int = 2, **options: Any) -> Any:
    with o1.probe(model, optimizer, **options) as p:
        for step in range(steps):
            optimizer.zero_grad()
            squares(model, step).backward()
            optimizer.step()
    return p.frame


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[None], x[None], x[None], need_weights=False)[0]
