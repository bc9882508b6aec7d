"""What `orderone sweep` trains: a task and a model for it at any width, or the user's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from orderone.cli import models
from orderone.cli.subject import load
from orderone.cli.unused import no_use
from orderone.core.errors import one_of
from orderone.core.exact import count

if TYPE_CHECKING:
    from torch import nn

TEXTS = {"lm": ("gpt", "gpt2", "llama"), "denoising": ("bart",)}
IMAGES = ("digits", "mnist", "fashion-mnist", "cifar10", "imagefolder")
MODELS = TEXTS | dict.fromkeys(IMAGES, ("mlp", "transformer", "vit"))
OF_HUGGING_FACE = {"gpt2": models.gpt2, "llama": models.llama, "vit": models.vit}
READS = {  # of what may be given
    **dict.fromkeys(TEXTS, ("source", "tokenizer", "root", "batch", "length")),
    **dict.fromkeys(IMAGES, ("root", "batch")),
    "digits": ("batch",),
    "imagefolder": ("root", "size", "batch"),
}
TASK = "lm"
BATCH = 16
LENGTH = 64  # if nothing else is said
PATCHES = (16, 8, 4, 2, 1)
FEWEST = 7  # sides of a patch, and how many it takes along an image; fewer for a tiny one


@dataclass(frozen=True)
class Setting:
    """`build` takes width and depth."""

    name: str
    build: Callable[..., Any]
    data: Any
    multiple: int = 1  # that a width has to be


@dataclass(frozen=True)
class Given:
    """What the user said about the data; None for nothing."""

    source: str | None = None
    tokenizer: str | None = None
    root: str | None = None
    size: int | None = None
    batch: int | None = None
    length: int | None = None

    def only(self, names: Sequence[str], whose: str) -> None:
        """A ValueError for anything else: it would have no effect."""
        others = {name: value for name, value in vars(self).items() if name not in names}
        no_use(
            whose, f"takes {', '.join(f'--{known}' for known in names)}" if names else "", **others
        )


# --- models ---------------------------------------------------------------------------------------


def gpt(width: int, depth: int = models.LAYERS, *, vocab: int, length: int) -> "nn.Module":
    from orderone.nn import GPT

    return GPT(vocab=vocab, length=length, width=width, heads=width // models.HEAD, depth=depth)


def bart(
    width: int, depth: int = models.LAYERS, *, vocab: int, length: int, padding: int
) -> "nn.Module":
    """An encoder and a decoder of `depth` blocks each."""
    from orderone.nn import EncoderDecoder

    heads = width // models.HEAD
    return EncoderDecoder(
        vocab=vocab, length=length, width=width, heads=heads, depth=depth, padding=padding
    )


def transformer(
    width: int, depth: int = models.LAYERS, *, image: int, patch: int, channels: int, classes: int
) -> "nn.Module":
    from orderone.nn import VisionTransformer

    shape: dict[str, Any] = {
        "image": image,
        "patch": patch,
        "channels": channels,
        "classes": classes,
    }
    return VisionTransformer(**shape, width=width, heads=width // models.HEAD, depth=depth)


def mlp(width: int, depth: int = models.LAYERS, *, inputs: int, classes: int) -> "nn.Module":
    return models.mlp(width, depth, inputs=inputs, classes=classes)


def of_hugging_face(
    width: int, depth: int = models.LAYERS, *, model: str, **shape: int
) -> "nn.Module":
    return OF_HUGGING_FACE[model](width, depth, **shape)


# --- tasks ----------------------------------------------------------------------------------------


def read_task(task: str, model: str | None, given: Given, device: str | None) -> Setting:
    """A task by name. Data is put where it is used."""
    name = one_of(task, MODELS, "task")
    given.only(READS[name], f"the task {name}")
    model = one_of(model or MODELS[name][0], MODELS[name], f"model for {name}")
    batch = count(BATCH if given.batch is None else given.batch, "batch")
    where = None if device is None else str(device)
    if name in IMAGES:
        return _images(name, model, given, batch, where)
    read = _language if name == "lm" else _denoising
    return read(model, given, batch, LENGTH if given.length is None else given.length, where)


def _language(model: str, given: Given, batch: int, length: int, device: str | None) -> Setting:
    from orderone import data

    hugging_face = model in OF_HUGGING_FACE
    length = count(length, "length", least=2, most=models.LONGEST if hugging_face else None)
    source, tokenizer, root = _text(given)
    form: Any = "huggingface" if hugging_face else "pairs"
    text = data.language(source, tokenizer, batch, length, format=form, device=device, root=root)
    ours = partial(gpt, vocab=text.vocab, length=length)
    if hugging_face:
        build = partial(of_hugging_face, model=model, vocab=text.vocab)
    else:
        build = ours
    return Setting(f"{model} on text ({source})", build, text, models.HEAD)


def _denoising(model: str, given: Given, batch: int, length: int, device: str | None) -> Setting:
    from orderone import data

    source, tokenizer, root = _text(given)
    text = data.denoising(source, tokenizer, batch, length, device=device, root=root)
    build = partial(
        bart, vocab=text.vocab, length=text.length + 2, padding=text.pad
    )  # start and end
    return Setting(f"{model} on masked text ({source})", build, text, models.HEAD)


def _text(given: Given) -> tuple[str, str, str]:
    return given.source or "python", given.tokenizer or "bytes", given.root or "data"


def _images(name: str, model: str, given: Given, batch: int, device: str | None) -> Setting:
    from orderone import data

    form: Any = "huggingface" if model in OF_HUGGING_FACE else "pairs"
    options: dict[str, Any] = {"format": form, "device": device} | (
        {} if given.size is None else {"size": given.size}
    )
    if name == "imagefolder":
        if given.root is None:
            raise ValueError(
                "root: imagefolder needs --root, a folder with a folder of images for each class"
            )
        images = data.images(given.root, batch, **options)
    else:
        images = data.images(name, batch, root=given.root or "data", **options)
    channels, high, wide = images.shape
    if model == "mlp":
        return Setting(
            f"mlp on {name}",
            partial(mlp, inputs=channels * high * wide, classes=images.classes),
            images,
        )
    shape = {
        "image": high,
        "patch": patch_of(high),
        "channels": channels,
        "classes": images.classes,
    }
    if model in OF_HUGGING_FACE:
        build = partial(of_hugging_face, model=model, **shape)
    else:
        build = partial(transformer, **shape)
    return Setting(f"{model} on {name}", build, images, models.HEAD)


def patch_of(side: int) -> int:
    """16 for 224 pixels as in S2, 4 for 28 and 32, 2 for 8."""
    return next(
        patch
        for patch in PATCHES
        if side % patch == 0 and side // patch >= min(FEWEST, max(1, side // 2))
    )


def own_task(
    builder: str, batches: str | None, given: Given, task: str | None, model: str | None
) -> Setting:
    """package.module:function of the width, and a task, function of (step, seed) or batch."""
    if batches is None:
        raise ValueError(
            "data: --builder needs --data package.module:thing, a task or a function of (step,"
            " seed)"
        )
    no_use("--builder", task=task, model=model)
    given.only((), "--builder")
    return Setting(f"{builder} on {batches}", load(builder, "builder"), load(batches, "data"))
