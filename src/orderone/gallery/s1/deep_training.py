"""Training of many deep networks at once: networks of one depth are a stack, and stacks run
concurrently.

A GPU replays the step of each stack as a graph on a separate stream, because a chain of 250 small
layers leaves most of the GPU idle. Matrix products are in full single precision, because the
correlations of deep layers are close to 1.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.optim import Optimizer

from orderone.data.vision.arrays import moments
from orderone.data.vision.sets import SETS
from orderone.gallery.experiment import Records
from orderone.gallery.s1.deep_network import Drawing, draw_networks
from orderone.gallery.subsets import image_subset
from orderone.sweeping.stacked import CapturedStep, Stack

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
LARGEST = 1000  # images per evaluation batch
REPORT_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class Images:
    """Pixels (n, inputs) of mean 0 and variance 1 in each channel, and classes."""

    train: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]

    @property
    def inputs(self) -> int:
        return self.train[0].shape[1]


def read_images(name: str, device: str, subset: bool = False) -> Images:
    """Read "digits", "mnist" or "cifar10"; `subset` reads the small files of
    `orderone.gallery.subsets`."""
    if subset:
        both = image_subset(name)
    else:
        both = SETS[name]("data")
    mean, deviation = (x.view(1, -1, 1, 1) for x in moments(both[0].images))
    pixels = [((part.images / 255 - mean) / deviation).flatten(1).to(device) for part in both]
    train, held = ((x, part.labels.to(device)) for x, part in zip(pixels, both, strict=True))
    return Images(train, held)


@dataclass(frozen=True)
class Members:
    """Networks of one depth that are trained together, each with an initial variance and a learning
    rate."""

    depth: int
    weight_vars: Sequence[float]
    rates: Sequence[float]


@dataclass(frozen=True)
class Training:
    """Settings that all networks share."""

    width: int
    batch: int
    bias_var: float
    keep: float = 1.0
    orthogonal: bool = False
    optimizer: str = "sgd"
    seed: int = 0


def seed_of(letter: str, seed: int) -> int:
    """Return the seed of a panel, which differs between panels."""
    return 1000 * seed + ord(letter)


def members_of(column: str, values: Sequence[float], seeds: int) -> pd.DataFrame:
    """Return a row for every value of `column` and every seed."""
    return pd.DataFrame(
        {column: np.tile(values, seeds), "seed": np.repeat(range(seeds), len(values))}
    )


def panels_of(records: Records) -> dict[str, pd.DataFrame]:
    """Return the records of panels by letter."""
    panels: dict[str, pd.DataFrame] = {}
    for name, frame in sorted(records.items()):
        if name.startswith("panel ") and len(frame):
            panels[name[-1]] = frame
    return panels


class Run:
    """One stack in training; `step()` makes one training step."""

    def __init__(self, training: Training, members: Members, images: Images):
        self.training = training
        self.members = members
        self.images = images
        self.device: torch.device = images.train[0].device
        self.cuda: bool = self.device.type == "cuda"
        self.generator: torch.Generator = torch.Generator(self.device)
        self.generator.manual_seed(1000 * training.seed + members.depth)
        self.stream: Any = torch.cuda.Stream() if self.cuda else None
        with self.apart():
            self.stack: Stack = self._stack()
            self.advance: Callable[..., Tensor] = self.stack.step
            if self.cuda:
                self.advance = CapturedStep(self.stack, self._batch())

    def _stack(self) -> Stack:
        training = self.training
        members = self.members
        drawing = Drawing(
            self.images.inputs,
            training.width,
            members.depth,
            training.bias_var,
            training.orthogonal,
        )
        models = draw_networks(drawing, list(members.weight_vars), self.generator)
        optimizers = [
            OPTIMIZERS[training.optimizer](model.parameters(), lr=rate)
            for model, rate in zip(models, members.rates, strict=True)
        ]
        # not compiled: every depth would be another program
        return Stack(models, optimizers)

    def apart(self) -> AbstractContextManager[object]:
        if self.cuda:
            return torch.cuda.stream(self.stream)
        return nullcontext()

    def step(self) -> None:
        with self.apart():
            self.advance(self._batch())

    def _batch(self) -> Any:
        """Draw images and masks for each member."""
        images, classes = self.images.train
        shape = (len(self.stack), self.training.batch)
        chosen = torch.randint(len(classes), shape, generator=self.generator, device=self.device)
        masks = self._masks(shape[0], self.members.depth, shape[1], self.training.width)
        return (images[chosen] if masks is None else (images[chosen], masks)), classes[chosen]

    def _masks(self, *shape: int) -> Tensor | None:
        keep = self.training.keep
        if keep == 1:
            return None
        return (
            torch.empty(shape, device=self.device)
            .bernoulli_(keep, generator=self.generator)
            .div_(keep)
        )

    def accuracy(self, images: Tensor, classes: Tensor, masked: bool = False) -> list[float]:
        """Return the accuracy of each member; dropout is applied only if `masked`."""
        with self.apart():
            right = torch.zeros(len(self.stack), device=self.device)
            for some, labels in zip(images.split(LARGEST), classes.split(LARGEST), strict=True):
                if masked:
                    masks = self._masks(self.members.depth, len(some), self.training.width)
                else:
                    masks = None
                if masks is None:
                    inputs = some
                else:
                    inputs = (some, masks)
                right += self.stack.evaluate((inputs, labels), _right)
            return (right / len(classes)).tolist()


def _right(logits: Tensor, classes: Tensor) -> Tensor:
    return (logits.argmax(-1) == classes).sum().to(logits.dtype)


def start(training: Training, stacks: Sequence[Members], images: Images) -> list[Run]:
    """Return a run for each stack, the deepest first, since it takes longest."""
    deepest_first = sorted(stacks, key=lambda members: -members.depth)
    return [Run(training, members, images) for members in deepest_first]


def train(
    runs: Sequence[Run], steps: int, label: str, look: Callable[[int], None] = lambda step: None
) -> None:
    """Train all runs; call `look(step)` after each step, and print the progress now and then."""
    start = reported = time.perf_counter()
    for step in range(1, steps + 1):
        for run in runs:
            run.step()
        look(step)
        if time.perf_counter() - reported > REPORT_EVERY:
            reported = _report(label, step, steps, start)
    if runs[0].cuda:
        torch.cuda.synchronize()
        _report(label, steps, steps, start)


def _report(label: str, step: int, steps: int, start: float) -> float:
    now = time.perf_counter()
    each = 1e3 * (now - start) / step
    print(
        f"{label}: step {step} of {steps}, {now - start:.0f} s, {each:.1f} ms per step",
        file=sys.stderr,
        flush=True,
    )
    return now


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
