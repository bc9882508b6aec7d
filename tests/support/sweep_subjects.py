"""Small models and data that train fast and can be imported by other processes."""

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn


def mlp(width: int, depth: int = 1, dropout: float = 0.0) -> nn.Module:
    hidden = [
        layer
        for _ in range(depth)
        for layer in (nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))
    ]
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), *hidden, nn.Linear(width, 3))


def batch(step: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randn(8, 4, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def changed(call: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the keywords of a call with some of them changed."""
    return {**call, **changes}


class Held:
    """Task with held-out data."""

    name = "signs"
    loss = None

    def batch(self, step: int, seed: int) -> tuple[Tensor, Tensor]:
        return batch(step, seed)

    def evaluation(self) -> list[tuple[Tensor, Tensor]]:
        return [batch(0, 999), batch(1, 999)]


def raises_at_16(width: int) -> nn.Module:
    """Return a model that can be built and planned, but raises in training."""
    model = mlp(width)
    if width == 16:
        model.register_forward_hook(_raise)
    return model


def _raise(module: nn.Module, inputs: object, output: Tensor) -> None:
    if torch.is_grad_enabled() and module.training and output.requires_grad:
        raise RuntimeError("not at width 16")


class Killer(nn.Module):
    """Model that kills the process that trains it, as when memory runs out."""

    def __init__(self, width: int, deadly: bool):
        super().__init__()
        self.inner = mlp(width)
        self.deadly = deadly
        self.parent = int(os.environ.get("SWEEP_PARENT", "0"))

    def forward(self, x: Tensor) -> Tensor:
        if self.deadly and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def killer(width: int, deadly: bool = False) -> nn.Module:
    return Killer(width, deadly)


CALLS = [0]  # counter of a model that keeps its state in another module
