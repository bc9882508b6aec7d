"""Augment a batch: crop, flip, RandAugment, erasing, smoothing, mixing, in this order."""

from dataclasses import dataclass

from torch import Tensor

from orderone.core.errors import one_of
from orderone.core.inputs import Name, Number
from orderone.core.reals import real
from orderone.data.augment.crop import flip, padded_crop, resized_crop
from orderone.data.augment.erase import erase
from orderone.data.augment.mix import mix, one_hot, smooth, soft_cross_entropy
from orderone.data.augment.randaugment import randaugment
from orderone.data.draws import Draws
from orderone.data.task import Loss

AUGMENTS = ("flip", "crop", "resize", "randaugment")


@dataclass(frozen=True)
class Recipe:
    """Settings of the augmentation; 0 switches a step off."""

    augment: str | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    erase: float = 0.0
    label_smoothing: float = 0.0

    @classmethod
    def read(
        cls,
        augment: Name | None,
        mixup: Number,
        cutmix: Number,
        erase: Number,
        label_smoothing: Number,
    ) -> "Recipe":
        """Check the user's settings and return a recipe."""
        if augment is not None:
            augment = one_of(augment, AUGMENTS, "augment")
        return cls(
            augment,
            real(mixup, "mixup", least=0),
            real(cutmix, "cutmix", least=0),
            real(erase, "erase", least=0, most=1),
            real(label_smoothing, "label_smoothing", least=0, most=1),
        )

    @property
    def resized(self) -> bool:
        """Return whether a random box of the image is enlarged.

        Images from files are cut when they are read.
        """
        return self.augment in {"resize", "randaugment"}

    @property
    def loss(self) -> Loss | None:
        """Return the loss for labels that are spread over classes; None for plain classes."""
        if self.mixup or self.cutmix or self.label_smoothing:
            return soft_cross_entropy
        return None

    def bytes(self, images: Tensor, draws: Draws, fill: Tensor, cropped: bool) -> Tensor:
        """Augment bytes; `cropped` says that the box was cut already."""
        if self.augment is None:
            return images
        if self.augment == "crop":
            images = padded_crop(images, draws, max(1, min(images.shape[-2:]) // 8))
        elif self.resized and not cropped:
            images = resized_crop(images, draws)
        images = flip(images, draws)
        if self.augment == "randaugment":
            return randaugment(images, draws, fill=fill)
        return images

    def erased(self, images: Tensor, draws: Draws, noise: Draws) -> Tensor:
        """Return normalized images with rectangles of noise."""
        if self.erase:
            return erase(images, draws, noise, self.erase)
        return images

    def mixed(
        self, images: Tensor, labels: Tensor, draws: Draws, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Return mixed images (seeds, batch, ...) and their labels.

        Labels are classes (seeds, batch), or shares of each class if labels are mixed.
        """
        if self.loss is None:
            return images, labels
        labels = smooth(one_hot(labels, classes), self.label_smoothing)
        if self.mixup or self.cutmix:
            return mix(images, labels, draws, self.mixup, self.cutmix)
        return images, labels

    def __str__(self) -> str:
        words = [self.augment or "plain"]
        for name in ("mixup", "cutmix", "erase", "label_smoothing"):
            value = getattr(self, name)
            if value:
                words.append(f"{name} {value!r}")
        return " ".join(words)
