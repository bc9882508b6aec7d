"""Model, sizes and batches of `orderone check`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from orderone.cli.models import LAYERS, LONGEST, MODELS
from orderone.cli.named_code import check_call, load, load_builder
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count

if TYPE_CHECKING:
    from torch import nn

WIDTHS = "64:512"  # default if the models differ in width
WIDTH = "128"  # default if the models differ in depth
MODEL = "gpt2"
BATCH = 16
LENGTH = 64


@dataclass(frozen=True)
class Subject:
    """A model with its sizes and batches."""

    name: str
    about: str
    build: Callable[[int], "nn.Module"]
    sizes: dict[str, list[int]]  # {"widths": ...} or {"depths": ...}
    batches: Any  # a batch, or one for each step, in any form that the model accepts


def known_model(
    name: str | None,
    sizes: dict[str, list[int]],
    batches: str | None,
    seed: int,
    batch: int | None = None,
    length: int | None = None,
) -> Subject:
    """Return one of the models of `orderone`, with embedded data or with the user's batches."""
    name = MODEL if name is None else one_of(name, MODELS, "model")
    model = MODELS[name]
    indivisible = [width for width in sizes["widths"] if width % model.multiple]
    if indivisible:
        raise InputError(
            f"widths: expected multiples of {model.multiple}, the head size of {name};"
            f" got {indivisible[0]}",
            argument="widths",
        )
    if len(sizes["widths"]) > 1:
        growing = {"widths": sizes["widths"]}
        build = partial(_build_width, model.build, sizes["depths"][0])
    else:
        growing = {"depths": sizes["depths"]}
        build = partial(model.build, sizes["widths"][0])
    if batches:
        refuse_unused("--batches", batch=batch, length=length)
        data = user_batches(batches)
    else:
        data = _known_batch(name, seed, batch, length)
    return Subject(name, model.about, build, growing, data)


def _build_width(build: Callable[[int, int], "nn.Module"], depth: int, width: int) -> "nn.Module":
    return build(width, depth)


def _known_batch(name: str, seed: int, batch: int | None, length: int | None) -> object:
    model = MODELS[name]
    size = count(BATCH if batch is None else batch, "batch")
    if not model.reads_text:
        refuse_unused(f"{name}, which is trained on images", length=length)
        return model.batch(seed, size, 0)
    bytes_of_text = LENGTH if length is None else length
    return model.batch(seed, size, count(bytes_of_text, "length", least=2, most=LONGEST))


def user_model(builder: str, sizes: dict[str, list[int]], batches: str | None) -> Subject:
    """Return the user's model: `builder` names a function of the width or of the depth."""
    if batches is None:
        raise InputError(
            "--builder needs --data package.module:name, the data for your model (or --batches)",
            "needs-another-option",
            argument="data",
        )
    build = load_builder(builder)
    growing = {name: values for name, values in sizes.items() if len(values) > 1}
    for values in growing.values():
        check_call(build, builder, values[0])
    description = f"{builder} on {batches}"
    return Subject(
        builder,
        description,
        cast("Callable[[int], nn.Module]", build),
        growing,
        user_batches(batches),
    )


def user_batches(where: str) -> Any:
    """Return the data that `where` names, in any form that `coord_check` takes."""
    return load(where, "data")


def read_sizes(widths: str | None, depths: str | None) -> dict[str, list[int]]:
    """Return several widths and one depth, or several depths and one width."""
    depth_values = read_range(depths or str(LAYERS), "depths")
    if widths:
        width_values = read_range(widths, "widths")
    elif len(depth_values) > 1:
        width_values = read_range(WIDTH, "widths")
    else:
        width_values = read_range(WIDTHS, "widths")
    if (len(depth_values) > 1) == (len(width_values) > 1):
        raise InputError(
            "widths: expected several widths and one depth, or one width and several depths; got"
            f" widths {widths or width_values} and depths {depths or depth_values}",
            argument="widths",
        )
    return {"widths": width_values, "depths": depth_values}


def read_range(text: str, name: str) -> list[int]:
    """Return sizes from text: 64:1024 doubles from 64 up to 1024; 64,96,128 is a list."""
    doubling = ":" in text
    words = text.split(":" if doubling else ",")
    numbers = [int(word) for word in words if word.strip().isdecimal() and int(word) > 0]
    if len(numbers) < len(words) or (doubling and (len(numbers) != 2 or numbers[0] > numbers[1])):
        raise InputError(
            f"{name}: expected 64:1024 (doubling), 64,96,128 or one number; got {text!r}",
            argument=name,
        )
    if not doubling:
        return sorted(set(numbers))
    first, last = numbers
    return [first << k for k in range((last // first).bit_length())]
