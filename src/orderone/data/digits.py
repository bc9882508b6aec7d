"""scikit-learn's digits: 1797 images of 8 x 8 pixels, which come in its wheel."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from orderone.core.exact import count
from orderone.core.inputs import Count


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """Images of shape (n, 1, 8, 8) with mean zero and variance one over all pixels, and the digits
    they show, (n,)."""
    images, labels = raw_digits()
    return (images - images.mean()) / images.std(), labels


def raw_digits() -> tuple[Tensor, Tensor]:
    """The same in shades from 0 to 16."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("scikit-learn brings the digits; pip install 'orderone[data]'") from error
    found: Any = load_digits()
    images = torch.tensor(found["images"], dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(found["target"], dtype=torch.long)


def digits_batch(seed: Count = 0, batch: Count = 64) -> tuple[Tensor, Tensor]:
    """Different images, drawn at random, and what they show."""
    images, labels = digits()
    order = torch.randperm(
        len(labels), generator=torch.Generator().manual_seed(count(seed, "seed", least=0))
    )
    chosen = order[: count(batch, "batch", most=len(labels))]
    return images[chosen], labels[chosen]
