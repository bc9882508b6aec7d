"""The record of an architecture, and the data that its models are trained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

import orderone as o1

BATCH = 8
LENGTH = 8
VOCAB = 32
FEATURES = 16
CLASSES = 10
CHANNELS = 3
IMAGE = 8
HEAD = 8  # size of an attention head; the number of heads grows with the width
WIDTHS = (32, 64, 128, 256)
RATES = {"sgd": 0.1, "adam": 3e-3, "adamw": 3e-3, "muon": 1e-2}


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers that are the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Return random integers below `high` that are the same in every run."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


# inputs and targets
TEXT = (integers(VOCAB, BATCH, LENGTH), integers(VOCAB, BATCH, LENGTH, seed=1))
TOPICS = (integers(VOCAB, BATCH, LENGTH), integers(CLASSES, BATCH))
VECTORS = (normal(BATCH, FEATURES), integers(CLASSES, BATCH))
SEQUENCES = (normal(BATCH, LENGTH, FEATURES), integers(CLASSES, BATCH))
PICTURES = (normal(BATCH, CHANNELS, IMAGE, IMAGE), integers(CLASSES, BATCH))


@dataclass(frozen=True)
class Architecture:
    """A healthy network as a function of its width, with the roles that theory gives its tensors.

    `roles` is derived by hand: patterns of names with their roles; the first that matches counts.
    """

    build: Callable[[int], nn.Module]
    batch: Any
    roles: Mapping[str, str]
    loss: Callable[..., Tensor] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    widths: tuple[int, ...] = WIDTHS
    options: Mapping[str, Any] = field(default_factory=dict)  # of `plan`

    def role(self, name: str) -> str:
        """Return the role that was derived by hand for a tensor."""
        for pattern, role in self.roles.items():
            if fnmatchcase(name, pattern):
                return role
        raise KeyError(name)

    def rate(self, optimizer: str) -> float:
        """Return a learning rate at which the network learns, and stays stable."""
        return (RATES | dict(self.rates)).get(optimizer, RATES["adam"])

    def plan(self, width: int, base: int, optimizer: str = "adam", **options: Any) -> o1.Plan:
        """Return the plan of a model relative to a narrower one."""
        torch.manual_seed(0)
        settings = {"optimizer": optimizer, "lr": self.rate(optimizer), **self.options, **options}
        return o1.plan(self.build(width), base=self.build(base), inputs=self.batch[0], **settings)

    def check(self, optimizer: str = "adam", **options: Any) -> o1.measure.Check:
        """Return the coordinate check of the planned models."""
        settings = {
            "widths": self.widths,
            "optimizer": optimizer,
            "lr": self.rate(optimizer),
            "batches": self.batch,
            "loss": self.loss,
            **self.options,
            **options,
        }
        return o1.coord_check(self.build, **settings)
