"""Image classification: bytes on the device, augmented and normalized for each batch.

    bytes -> crop, flip, RandAugment       bytes
          -> normalisation                 mean 0 and standard deviation 1
          -> erasing
          -> mixup or cutmix

Every epoch contains each image once. Held-out images are normalized only. `S2` is the recipe of
section II.1.A of the paper "Effective Theory of Transformers at Initialization" (S2).
"""

import copy
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.data.augment.recipe import Recipe
from orderone.data.devices import read_device
from orderone.data.draws import Draws
from orderone.data.inputs import Device, Pictures, Root
from orderone.data.order import Order, spread
from orderone.data.task import EVALUATIONS, FORMATS, Batch, Loss
from orderone.data.vision.arrays import Arrays
from orderone.data.vision.folder import Files, image_folder
from orderone.data.vision.pixels import Memory, Pixels
from orderone.data.vision.sets import SETS, apart

S2: Mapping[str, Any] = MappingProxyType(
    {"augment": "randaugment", "mixup": 0.8, "cutmix": 1.0, "erase": 0.25, "label_smoothing": 0.1}
)


def images(
    source: Pictures = "digits",
    batch: Count = 64,
    *,
    augment: Name | None = None,
    mixup: Number = 0.0,
    cutmix: Number = 0.0,
    erase: Number = 0.0,
    label_smoothing: Number = 0.0,
    size: Count = 224,
    evaluations: Count | None = EVALUATIONS,
    format: Name = "pairs",
    device: Device = None,
    root: Root = "data",
) -> "Images":
    """Make a task: classify images.

    Args:
        source: "digits", "mnist", "fashion-mnist", "cifar10" (in `root`); a folder with a folder of
            images for each class, or with such folders `train` and `val`; or two tensors, bytes (n,
            channels, height, width) and classes (n,).
        batch: Number of images in a batch.
        augment: "flip"; "crop": shift by up to an eighth of the side, and flip; "resize": enlarge a
            random box, and flip; "randaugment": as "resize", and two operations of magnitude 9.
        mixup: The v of Beta(v, v) for the share of the first of two images; 0 for no mixup.
        cutmix: The same for cutmix. With both, each batch uses one of them, at random.
        erase: Probability that a rectangle of an image becomes noise.
        label_smoothing: Part of a label that is spread over all classes.
        size: Side in pixels of images from a folder, which are cut to squares.
        evaluations: Largest number of held-out batches; None for all of them.
        format: "pairs" of images and classes, or "huggingface".
        device: Device that stores images in memory and makes the batches.
        root: Folder of data sets.
    """
    recipe = Recipe.read(augment, mixup, cutmix, erase, label_smoothing)
    train, held = _read(source, root, count(size, "size"), resized=recipe.resized)
    return Images(train, held, batch, recipe, evaluations=evaluations, format=format, device=device)


class Images:
    """Image classification as a task."""

    name: str
    train: Pixels
    held: Pixels
    recipe: Recipe
    size: int  # images in a batch
    format: str
    evaluations: int | None
    device: torch.device
    classes: int
    shape: torch.Size  # (channels, height, width)
    mean: Tensor  # of every channel
    std: Tensor

    def __init__(
        self,
        train: Pixels,
        held: Pixels,
        batch: Count,
        recipe: Recipe,
        *,
        evaluations: Count | None = EVALUATIONS,
        format: Name = "pairs",
        device: Device = None,
    ):
        self.train = train
        self.held = held
        self.recipe = recipe
        self.size = count(batch, "batch")
        self.format = one_of(format, FORMATS, "format")
        self.evaluations = None
        if evaluations is not None:
            self.evaluations = count(evaluations, "evaluations", least=0)
        self.device = read_device(device)
        self.classes = max(train.classes, held.classes)
        self.shape = train.shape
        self._order = Order(len(train), self.size)
        self.mean, self.std = train.moments()
        self.name = (
            f"images {train.fingerprint} {held.fingerprint} {recipe} {self.format} {self.size}"
            f" {evaluations}"
        )

    @property
    def loss(self) -> Loss | None:
        """Return cross entropy for labels that are spread over classes, or None for the default."""
        return self.recipe.loss

    def with_batch_size(self, batch: Count) -> "Images":
        """Return the same task with batches of another size."""
        other = copy.copy(self)
        other.size = count(batch, "batch")
        other.name = f"{self.name}, batches of {other.size}"
        other._order = Order(len(self.train), other.size)
        return other

    def batch(self, step: Count, seed: Count) -> Batch:
        """Return the batch of this step and seed."""
        pixels, labels = self._augmented(step, [seed], self.device)
        return self._batch(pixels[0], labels[0])

    def stacked(self, step: Count, seeds: Sequence[int], device: Device = None) -> Batch:
        """Return the batches of all seeds, (seeds, batch, ...)."""
        if device is None:
            place = self.device
        else:
            place = read_device(device)
        pixels, labels = self._augmented(step, seeds, place)
        return self._batch(pixels, labels)

    def evaluation(self) -> list[Batch]:
        """Return whole batches of the held-out images, evenly spaced.

        If `evaluations` is None, return all held-out images.
        """
        number = len(self.held)
        whole_batches = number // self.size
        indices = torch.arange(number)
        if self.evaluations is not None and whole_batches:
            indices = spread(number, min(whole_batches, self.evaluations) * self.size)
        batches = []
        for part in indices.split(self.size):
            if len(part):
                pixels, labels = self.held.take(part, Draws([0], 0), self.device)
                batches.append(self._batch(self._normalized(pixels), labels))
        return batches

    def _augmented(
        self, step: int, seeds: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        draws = Draws(seeds, step)
        pixels, labels = self.train.take(self._order(step, seeds).flatten(), draws, device)
        if isinstance(self.train, Files):
            self.train.ahead(self._order(step + 1, seeds).flatten(), Draws(seeds, step + 1))
        fill = (self.mean * 255).round().to(torch.uint8)
        pixels = self.recipe.bytes(pixels, draws, fill, self.train.cropped)
        pixels = self.recipe.erased(self._normalized(pixels), draws, Draws(seeds, step, device))
        pixels = pixels.view(len(seeds), self.size, *pixels.shape[1:])
        labels = labels.view(len(seeds), self.size)
        return self.recipe.mixed(pixels, labels, draws, self.classes)

    def _normalized(self, pixels: Tensor) -> Tensor:
        mean = self.mean.to(pixels.device).view(-1, 1, 1)
        std = self.std.to(pixels.device).view(-1, 1, 1)
        return pixels.float().mul_(1 / (255 * std)).sub_(mean / std)

    def _batch(self, pixels: Tensor, labels: Tensor) -> Batch:
        if self.format == "pairs":
            return pixels, labels
        if self.loss is None:
            return {"pixel_values": pixels, "labels": labels}
        # Hugging Face models do not accept labels that are spread over classes.
        return {"pixel_values": pixels}, labels

    def __repr__(self) -> str:
        return (
            f"Images({len(self.train):,} of {self.classes} classes, {tuple(self.shape)},"
            f" {len(self.held):,} held out, batches of {self.size}, {self.recipe}, {self.format})"
        )


def _read(source: Pictures, root: Root, size: int, resized: bool) -> tuple[Pixels, Pixels]:
    """Return training and held-out images."""
    if isinstance(source, str) and source.lower() in SETS:
        train, held = SETS[source.lower()](root)
        return Memory(train), Memory(held)
    if isinstance(source, str) and not Path(source).is_dir():
        try:
            one_of(source, SETS, "source")
        except InputError as error:
            message = f"{error.message}; the folder {Path(source).absolute()} does not exist"
            raise InputError(message, "unknown-name", argument="source") from None
    if isinstance(source, str | PathLike):
        return image_folder(Path(source), size, resized)
    if isinstance(source, tuple | list) and len(source) == 2:
        pixels, labels = source
        if isinstance(pixels, Tensor) and isinstance(labels, Tensor):
            train, held = apart(Arrays(pixels, labels))
            return Memory(train), Memory(held)
    message = (
        f"source: expected {', '.join(map(repr, SETS))}, a folder with a folder for each class, or"
        f" a pair of tensors (bytes, classes); got {type(source).__name__}"
    )
    raise InputError(message, "wrong-type", argument="source")
