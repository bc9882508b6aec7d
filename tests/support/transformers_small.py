"""Our Transformers, small, as functions of their width: heads of 16 channels that grow in
number."""

from typing import Any

import torch
from torch import Tensor

from orderone import nn

VOCAB, LENGTH, IMAGE, PATCH, CLASSES, DEPTH = 61, 12, 16, 4, 10, 2


def vit(width: int = 64, **changes) -> nn.VisionTransformer:
    sizes: dict[str, Any] = {
        "image": IMAGE,
        "patch": PATCH,
        "classes": CLASSES,
        "width": width,
        "heads": width // 16,
        "depth": DEPTH,
    }
    return nn.VisionTransformer(**sizes | changes)


def vit_class(width: int = 64, **changes) -> nn.VisionTransformer:
    return vit(width, pooling="class", **changes)


def _text_sizes(width: int) -> dict[str, Any]:
    return {
        "vocab": VOCAB,
        "length": LENGTH,
        "width": width,
        "heads": width // 16,
        "depth": DEPTH,
    }


def encoder_decoder(width: int = 64, **changes) -> nn.EncoderDecoder:
    return nn.EncoderDecoder(**_text_sizes(width) | changes)


def gpt(width: int = 64, **changes) -> nn.GPT:
    return nn.GPT(**_text_sizes(width) | changes)


def gpt_untied(width: int = 64, **changes) -> nn.GPT:
    return gpt(width, tied=False, **changes)


BUILD = {f.__name__: f for f in (vit, vit_class, encoder_decoder, gpt, gpt_untied)}


def images(batch: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(seed))


def ids(batch: int = 4, tokens: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def inputs(name: str) -> tuple[Tensor, ...]:
    if name.startswith("vit"):
        return (images(),)
    return (ids(), ids(tokens=9, seed=1)) if name == "encoder_decoder" else (ids(),)
