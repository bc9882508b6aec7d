"""What `orderone sweep` trains: a task of embedded data and a model for it at any width, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from orderone.cli import models
from orderone.cli.subject import load
from orderone.core.errors import one_of
from orderone.core.exact import count

if TYPE_CHECKING:
    from torch import nn

MODELS = {"lm": ("gpt", "gpt2", "llama"), "digits": ("mlp", "vit")}
OF_HUGGING_FACE = {"gpt2": models.gpt2, "llama": models.llama, "vit": models.vit}


@dataclass(frozen=True)
class Setting:
    """`build` takes width and depth."""

    name: str
    build: Callable[..., Any]
    data: Any
    multiple: int = 1  # that a width has to be


def gpt(width: int, depth: int = models.LAYERS, *, vocab: int, length: int) -> "nn.Module":
    from orderone.nn import GPT

    return GPT(vocab=vocab, length=length, width=width, heads=width // models.HEAD, depth=depth)


def mlp(width: int, depth: int = models.LAYERS) -> "nn.Module":
    return models.mlp(width, depth)


def of_hugging_face(width: int, depth: int = models.LAYERS, *, model: str) -> "nn.Module":
    return OF_HUGGING_FACE[model](width, depth)


def read_task(task: str, model: str | None, source: str, batch: int, length: int, device: str | None) -> Setting:
    """A task by name. Data is put where it is used."""
    from orderone import data

    name = one_of(task, MODELS, "task")
    model = one_of(model or MODELS[name][0], MODELS[name], f"model for {name}")
    hugging_face = model in OF_HUGGING_FACE
    form: Any = "huggingface" if hugging_face else "pairs"
    where = device if device is None else str(device)
    if name == "digits":
        images = data.images("digits", count(batch, "batch"), format=form, device=where)
        build = partial(of_hugging_face, model=model) if hugging_face else mlp
        return Setting(f"{model} on digits", build, images, models.HEAD if hugging_face else 1)
    longest = models.LONGEST if hugging_face else None
    size = count(length, "length", least=2, most=longest)
    text = data.language(source, "bytes", count(batch, "batch"), size, format=form, device=where)
    build = partial(of_hugging_face, model=model) if hugging_face else partial(gpt, vocab=text.vocab, length=size)
    return Setting(f"{model} on text ({source})", build, text, models.HEAD)


def own_task(builder: str, batches: str | None) -> Setting:
    """package.module:function of the width, and a task, function of (step, seed) or batch."""
    if batches is None:
        raise ValueError("data: --builder needs --data package.module:thing, a task or a function of (step, seed)")
    return Setting(f"{builder} on {batches}", load(builder, "builder"), load(batches, "data"))
