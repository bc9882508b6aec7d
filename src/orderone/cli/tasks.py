"""Tasks of `orderone sweep`: data, and models for it at any width; or the user's model and data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from orderone.cli import models
from orderone.cli.named_code import load_builder
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.named_code import load

if TYPE_CHECKING:
    from torch import nn

IMAGE_MODELS = ("mlp", "transformer", "vit")
MODELS: dict[str, tuple[str, ...]] = {  # task -> models; the first is the default
    "lm": ("gpt", "gpt2", "llama"),
    "denoising": ("bart",),
    "digits": IMAGE_MODELS,
    "mnist": IMAGE_MODELS,
    "fashion-mnist": IMAGE_MODELS,
    "cifar10": IMAGE_MODELS,
    "imagefolder": IMAGE_MODELS,
}
TEXTS = ("lm", "denoising")
OPTIONS: dict[str, tuple[str, ...]] = {  # task -> fields of `DataOptions` that it uses
    "lm": ("source", "tokenizer", "root", "batch", "length"),
    "denoising": ("source", "tokenizer", "root", "batch", "length"),
    "digits": ("batch",),
    "mnist": ("root", "batch"),
    "fashion-mnist": ("root", "batch"),
    "cifar10": ("root", "batch"),
    "imagefolder": ("root", "size", "batch"),
}
HUGGING_FACE: dict[str, Callable[..., "nn.Module"]] = {
    "gpt2": models.gpt2,
    "llama": models.llama,
    "vit": models.vit,
}
# The start that was best for the model's architecture in docs/choosing-the-start.md.
TIED_DECODERS = ("gpt", "gpt2")
TIED_DECODER_START = "zero-residual"
OTHER_START = "fan-in"
TASK = "lm"
BATCH = 16
LENGTH = 64
PATCHES = (16, 8, 4, 2, 1)  # side of a patch, in pixels
FEWEST = 7  # patches along an image; tiny images have fewer


@dataclass(frozen=True)
class Setting:
    """A function `build` of width and depth that returns a model, and data for it."""

    name: str
    build: Callable[..., "nn.Module"]
    data: Any  # a task, a function of (step, seed), or a batch
    multiple: int = 1  # widths must be multiples of this
    size: int | None = None  # samples in a batch, for data of the user that has none
    start: str | None = None  # the recommended one; None for a model of the user


@dataclass(frozen=True)
class DataOptions:
    """Options about the data; None if the user did not pass the option."""

    source: str | None = None
    tokenizer: str | None = None
    root: str | None = None
    size: int | None = None
    batch: int | None = None
    length: int | None = None

    def only(self, names: Sequence[str], whose: str) -> None:
        """Raise an InputError if an option that is not in `names` was passed."""
        unused = {name: value for name, value in vars(self).items() if name not in names}
        remedy = "leave it out"
        if names:
            remedy = f"expected {', '.join(f'--{name}' for name in names)}"
        refuse_unused(whose, remedy, **unused)


# --- models ---------------------------------------------------------------------------------------


def gpt(width: int, depth: int = models.LAYERS, *, vocab: int, length: int) -> "nn.Module":
    """Build a decoder-only language model."""
    from orderone.nn import GPT

    return GPT(vocab=vocab, length=length, width=width, heads=width // models.HEAD, depth=depth)


def bart(
    width: int, depth: int = models.LAYERS, *, vocab: int, length: int, padding: int
) -> "nn.Module":
    """Build an encoder and a decoder of `depth` blocks each."""
    from orderone.nn import EncoderDecoder

    heads = width // models.HEAD
    return EncoderDecoder(
        vocab=vocab, length=length, width=width, heads=heads, depth=depth, padding=padding
    )


def transformer(
    width: int, depth: int = models.LAYERS, *, image: int, patch: int, channels: int, classes: int
) -> "nn.Module":
    """Build a Vision Transformer."""
    from orderone.nn import VisionTransformer

    return VisionTransformer(
        image=image,
        patch=patch,
        channels=channels,
        classes=classes,
        width=width,
        heads=width // models.HEAD,
        depth=depth,
    )


def mlp(width: int, depth: int = models.LAYERS, *, inputs: int, classes: int) -> "nn.Module":
    """Build an MLP."""
    return models.mlp(width, depth, inputs=inputs, classes=classes)


def hugging_face(
    width: int, depth: int = models.LAYERS, *, model: str, **shape: int
) -> "nn.Module":
    """Build a model from Hugging Face."""
    return HUGGING_FACE[model](width, depth, **shape)


# --- tasks ----------------------------------------------------------------------------------------


def read_task(task: str, model: str | None, options: DataOptions, device: str | None) -> Setting:
    """Return a task by name, with its data on `device`."""
    name = one_of(task, MODELS, "task")
    options.only(OPTIONS[name], f"the task {name}")
    model = one_of(model or MODELS[name][0], MODELS[name], f"model for {name}")
    setting = _setting(name, model, options, device)
    if model in TIED_DECODERS:
        start = TIED_DECODER_START
    else:
        start = OTHER_START
    return replace(setting, start=start)


def _setting(name: str, model: str, options: DataOptions, device: str | None) -> Setting:
    batch = count(BATCH if options.batch is None else options.batch, "batch")
    if device is not None:
        device = str(device)
    if name not in TEXTS:
        return _images(name, model, options, batch, device)
    if options.length is None:
        length = LENGTH
    else:
        length = options.length
    if name == "lm":
        return _language(model, options, batch, length, device)
    return _denoising(model, options, batch, length, device)


def _language(
    model: str, options: DataOptions, batch: int, length: int, device: str | None
) -> Setting:
    from orderone import data

    source, tokenizer, root = _text(options)
    if model in HUGGING_FACE:
        length = count(length, "length", least=2, most=models.LONGEST)
        format = "huggingface"
    else:
        length = count(length, "length", least=2)
        format = "pairs"
    text = data.language(source, tokenizer, batch, length, format=format, device=device, root=root)
    if model in HUGGING_FACE:
        build = partial(hugging_face, model=model, vocab=text.vocab)
    else:
        build = partial(gpt, vocab=text.vocab, length=length)
    return Setting(f"{model} on text ({source})", build, text, models.HEAD)


def _denoising(
    model: str, options: DataOptions, batch: int, length: int, device: str | None
) -> Setting:
    from orderone import data

    source, tokenizer, root = _text(options)
    text = data.denoising(source, tokenizer, batch, length, device=device, root=root)
    positions = text.length + 2  # plus start and end tokens
    build = partial(bart, vocab=text.vocab, length=positions, padding=text.pad)
    return Setting(f"{model} on masked text ({source})", build, text, models.HEAD)


def _text(options: DataOptions) -> tuple[str, str, str]:
    """Return source, tokenizer and root."""
    return options.source or "python", options.tokenizer or "bytes", options.root or "data"


def _images(name: str, model: str, options: DataOptions, batch: int, device: str | None) -> Setting:
    from orderone import data

    arguments: dict[str, Any] = {"format": "pairs", "device": device}
    if model in HUGGING_FACE:
        arguments["format"] = "huggingface"
    if options.size is not None:
        arguments["size"] = options.size
    if name == "imagefolder":
        if options.root is None:
            raise InputError(
                "--task imagefolder needs --root, a folder with one folder of images per class",
                "needs-another-option",
                argument="root",
            )
        images = data.images(options.root, batch, **arguments)
    else:
        images = data.images(name, batch, root=options.root or "data", **arguments)
    channels, height, width = images.shape
    if model == "mlp":
        build = partial(mlp, inputs=channels * height * width, classes=images.classes)
        return Setting(f"mlp on {name}", build, images)
    shape = {
        "image": height,
        "patch": patch_of(height),
        "channels": channels,
        "classes": images.classes,
    }
    if model in HUGGING_FACE:
        build = partial(hugging_face, model=model, **shape)
    else:
        build = partial(transformer, **shape)
    return Setting(f"{model} on {name}", build, images, models.HEAD)


def patch_of(side: int) -> int:
    """Return the side of a patch: 16 for an image of 224 pixels, 4 for 28 and 32, 2 for 8."""
    fewest = min(FEWEST, max(1, side // 2))
    fitting = [patch for patch in PATCHES if side % patch == 0 and side // patch >= fewest]
    return fitting[0]


def user_task(
    builder: str, batches: str | None, options: DataOptions, task: str | None, model: str | None
) -> Setting:
    """Return the user's model, a function of the width, with the user's data."""
    if batches is None:
        raise InputError(
            "--builder needs --data package.module:name, the data for your model",
            "needs-another-option",
            argument="data",
        )
    refuse_unused("--builder", task=task, model=model)
    options.only(("batch",), "--builder")
    build = load_builder(builder)
    return Setting(f"{builder} on {batches}", build, load(batches, "data"), size=options.batch)
