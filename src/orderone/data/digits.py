"""scikit-learn's digits: 1797 images of 8 x 8 pixels, which are part of its wheel."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.core.optional import need


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """Return images (n, 1, 8, 8) and the digits they show, (n,).

    Over all pixels, the mean is zero and the variance one.
    """
    images, labels = raw_digits()
    return (images - images.mean()) / images.std(), labels


def raw_digits() -> tuple[Tensor, Tensor]:
    """Return images in shades from 0 to 16, and the digits they show."""
    datasets: Any = need("sklearn.datasets", "data", "for the digits")
    bunch: Any = datasets.load_digits()
    images = torch.tensor(bunch["images"], dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(bunch["target"], dtype=torch.long)


def digits_batch(seed: Count = 0, batch: Count = 64) -> tuple[Tensor, Tensor]:
    """Draw different images at random; return them and the digits they show."""
    images, labels = digits()
    generator = torch.Generator().manual_seed(count(seed, "seed", least=0))
    order = torch.randperm(len(labels), generator=generator)
    chosen = order[: count(batch, "batch", most=len(labels))]
    return images[chosen], labels[chosen]
