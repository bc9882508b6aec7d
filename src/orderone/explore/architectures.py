"""Models that the page offers, and models of the user by the name of their code."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from orderone.core.errors import InputError
from orderone.core.named_code import load

if TYPE_CHECKING:
    from torch import Tensor, nn

# A model, and inputs if it needs certain ones
Example: TypeAlias = "tuple[nn.Module, Tensor | None]"
LAYERS = 6


def _mlp(activation: str) -> Example:
    from torch import nn

    layers: list[nn.Module] = [nn.Linear(32, 256)]
    for _ in range(LAYERS - 1):
        layers += [getattr(nn, activation)(), nn.Linear(256, 256)]
    return nn.Sequential(*layers, getattr(nn, activation)(), nn.Linear(256, 10)), None


def _dropout() -> Example:
    from torch import nn

    layers: list[nn.Module] = [nn.Linear(32, 256)]
    for _ in range(LAYERS - 1):
        layers += [nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 256)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(256, 10)), None


def _cnn() -> Example:
    import torch
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1)]
    for _ in range(3):
        layers += [nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)]
    pool = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, *pool, nn.Linear(64, 10)).eval(), torch.ones(1, 3, 8, 8)


def _gpt2() -> Example:
    import torch
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        n_embd=64,
        n_layer=2,
        n_head=4,
        vocab_size=100,
        n_positions=16,
        activation_function="gelu",  # the approximation with tanh takes seconds
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2Model(config).eval(), torch.arange(5)[None]


def _vit() -> Example:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=8,
        patch_size=4,
    )
    return ViTForImageClassification(config).eval(), torch.ones(1, 3, 8, 8)


ARCHITECTURES: Mapping[str, Callable[[], Example]] = {
    "MLP, ReLU": partial(_mlp, "ReLU"),
    "MLP, tanh": partial(_mlp, "Tanh"),
    "MLP, GELU": partial(_mlp, "GELU"),
    "MLP, tanh, dropout": _dropout,
    "CNN, ReLU": _cnn,
    "GPT-2, exact GELU": _gpt2,
    "ViT": _vit,
}


def model_of(name: str) -> Example:
    """Return a model of the table, or the one that package.module:name makes or is."""
    import torch

    if name in ARCHITECTURES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same numbers on every visit
            return ARCHITECTURES[name]()
    if ":" not in name and "." not in name:
        raise InputError(
            f"architecture: expected one of {'; '.join(ARCHITECTURES)}; or the name of your code as"
            f" package.module:function; got {name!r}",
            argument="architecture",
        )
    return _made(load(name, "architecture"), name)


def _made(thing: object, name: str) -> Example:
    """Return the model that a function of the user makes, with its inputs if it returns a pair."""
    from torch import Tensor, nn

    if not isinstance(thing, nn.Module) and callable(thing):
        try:
            thing = thing()
        except Exception as error:  # code of the user may raise anything
            raise InputError(
                f"architecture: {name}() raised {type(error).__name__}: {error}; name a function"
                " without arguments that returns a model",
                "cannot-import",
                argument="architecture",
            ) from error
    if isinstance(thing, nn.Module):
        return thing, None
    if isinstance(thing, tuple) and len(thing) == 2:
        model, inputs = thing
        if isinstance(model, nn.Module) and isinstance(inputs, Tensor):
            return model, inputs
    raise InputError(
        f"architecture: expected {name} to be a model, or a function without arguments that returns"
        f" one, or a pair of a model and an input batch; got {type(thing).__name__}",
        "not-a-builder",
        argument="architecture",
    )
