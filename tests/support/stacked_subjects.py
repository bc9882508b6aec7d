"""Small models of many kinds, with batches for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, nn

from orderone.nn import GPT, VisionTransformer

VOCAB, LENGTH = 32, 8


@dataclass(frozen=True)
class Subject:
    build: Callable[[int], nn.Module]
    batch: Callable[[Generator], Any]


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, width),
        nn.BatchNorm1d(width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 3),
    )


def cnn(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2),
        nn.Flatten(),
        nn.Linear(4 * width, 3),
    )


def gpt(width: int) -> nn.Module:
    return GPT(vocab=VOCAB, length=LENGTH, width=width, heads=2, depth=2, bias=True, affine=True)


def vit(width: int) -> nn.Module:
    return VisionTransformer(image=8, patch=4, channels=1, classes=3, width=width, heads=2, depth=2)


def llama(width: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=LENGTH,
        )
    )


def numbers(generator: Generator) -> Any:
    return torch.randn(5, 6, generator=generator), torch.randint(3, (5,), generator=generator)


def images(generator: Generator) -> Any:
    return torch.randn(5, 1, 8, 8, generator=generator), torch.randint(3, (5,), generator=generator)


def tokens(generator: Generator) -> torch.Tensor:
    return torch.randint(VOCAB, (3, LENGTH), generator=generator)


def pairs(generator: Generator) -> Any:
    ids = tokens(generator)
    return ids[:, :-1], ids[:, 1:]


def named(generator: Generator) -> Any:
    ids = tokens(generator)
    return {"input_ids": ids, "labels": ids}


SUBJECTS = {
    "mlp": Subject(mlp, numbers),
    "cnn": Subject(cnn, images),
    "gpt": Subject(gpt, pairs),
    "vit": Subject(vit, images),
    "llama": Subject(llama, named),
}
