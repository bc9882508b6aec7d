"""Model, sizes and batches of `orderone check`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from orderone.cli.models import LAYERS, LONGEST, MODELS
from orderone.cli.named_code import check_call, load_builder
from orderone.cli.unused import refuse_unused
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.named_code import load

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
    build: Callable[..., "nn.Module"]
    sizes: dict[str, list[int]]  # {"widths": ...}, {"depths": ...}, {"batch_sizes": ...}, ...
    batches: Any  # a batch, or one for each step, in any form that the model accepts


@dataclass(frozen=True)
class Selection:
    """Options of the command line that choose the model, its sizes and its batches."""

    model: str | None
    builder: str | None
    widths: str | None
    depths: str | None
    batches: str | None
    seed: int
    batch: int | None
    length: int | None


def selected(options: Selection, axis: "AxisSizes | None") -> Subject:
    """Return the models to compare, with their batches."""
    if axis is None:
        return _sizes_of_model(options)
    if axis.is_of_training:
        return _axis_of_training(axis, options)
    return _axis_of_model(axis, options)


def _sizes_of_model(options: Selection) -> Subject:
    """Return a model of several widths or depths."""
    sizes = read_sizes(options.widths, options.depths)
    if not options.builder:
        shape = (options.batch, options.length)
        return known_model(options.model, sizes, options.batches, options.seed, *shape)
    if len(sizes["widths"]) > 1:
        refuse_unused("--builder and several --widths", depths=options.depths)
    else:
        refuse_unused("--builder and several --depths", widths=options.widths)
    return user_model(options.builder, sizes, options.batches)


def known_model(
    name: str | None,
    sizes: dict[str, list[int]],
    batches: str | None,
    seed: int,
    batch: int | None = None,
    length: int | None = None,
) -> Subject:
    """Return one of the models of `orderone`, with embedded data or with the user's batches."""
    if name is None:
        name = MODEL
    else:
        name = one_of(name, MODELS, "model")
    model = MODELS[name]
    _check_multiple(name, sizes["widths"])
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


def _check_multiple(name: str, widths: list[int]) -> None:
    multiple = MODELS[name].multiple
    indivisible = [width for width in widths if width % multiple]
    if indivisible:
        raise InputError(
            f"widths: expected multiples of {multiple}, the head size of {name};"
            f" got {indivisible[0]}",
            argument="widths",
        )


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
    """Return the user's model: `builder` names a function of the width, or of another size."""
    data = user_batches(_needed(batches))
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
        data,
    )


def _needed(batches: str | None) -> str:
    if batches is None:
        raise InputError(
            "--builder needs --data package.module:name, the data for your model (or --batches)",
            "needs-another-option",
            argument="data",
        )
    return batches


# --- other axes of scale --------------------------------------------------------------------------

OF_TRAINING = ("batch_sizes", "tokens")  # one model, of which the training grows


@dataclass(frozen=True)
class AxisSizes:
    """Several sizes on an axis other than width and depth, by the argument of `coord_check`."""

    name: str
    sizes: list[int]

    @property
    def is_of_training(self) -> bool:
        """Whether all sizes have the same model."""
        return self.name in OF_TRAINING

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def read_axis(**texts: str | None) -> AxisSizes | None:
    """Return the axis of which the user passed sizes; None if there is none."""
    passed = {name: text for name, text in texts.items() if text is not None}
    if len(passed) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in passed)
        message = f"expected sizes on one axis, got {names}"
        raise InputError(message, "several-axes", argument=list(passed)[1])
    for name, text in passed.items():
        return AxisSizes(name, read_range(text, name))
    return None


def _axis_of_training(axis: AxisSizes, options: Selection) -> Subject:
    """Return one model for trainings of several sizes."""
    if axis.name == "batch_sizes":
        refuse_unused(axis.option, batch=options.batch)
    growing = {axis.name: axis.sizes}
    if options.builder:
        build = _builder_of_one_model(axis, options.builder, options)
        data = user_batches(_needed(options.batches))
        about = f"{options.builder} on {options.batches}"
        return Subject(options.builder, about, build, growing, data)
    if options.model is None:
        name = MODEL
    else:
        name = one_of(options.model, MODELS, "model")
    known = MODELS[name]
    width = _one_size(options.widths or WIDTH, "widths", axis)
    _check_multiple(name, [width])
    depth = _one_size(options.depths or str(LAYERS), "depths", axis)
    build = partial(known.build, width, depth)
    if options.batches:
        refuse_unused("--batches", batch=options.batch, length=options.length)
        return Subject(name, known.about, build, growing, user_batches(options.batches))
    if axis.name == "batch_sizes":
        size = axis.sizes[-1]
    else:
        size = options.batch

    def batch_of_step(step: int, _seed: int) -> object:
        return _known_batch(name, options.seed + step, size, options.length)

    return Subject(name, known.about, build, growing, batch_of_step)


def _builder_of_one_model(
    axis: AxisSizes, builder: str, options: Selection
) -> Callable[..., "nn.Module"]:
    """Return the user's function: of one width with --widths, otherwise without arguments."""
    refuse_unused(f"--builder and {axis.option}", depths=options.depths)
    build = load_builder(builder)
    if options.widths:
        return partial(build, _one_size(options.widths, "widths", axis))
    check_call(build, builder)
    return build


def _axis_of_model(axis: AxisSizes, options: Selection) -> Subject:
    """Return the user's model at several sizes on an axis that the models of `orderone` lack."""
    if options.builder is None:
        raise InputError(
            f"{axis.option} needs --builder package.module:function, a function of this size; the"
            " models of --model have no such axis",
            "needs-another-option",
            argument="builder",
        )
    refuse_unused(axis.option, widths=options.widths, depths=options.depths)
    return user_model(options.builder, {axis.name: axis.sizes}, options.batches)


def _one_size(text: str, name: str, axis: AxisSizes) -> int:
    sizes = read_range(text, name)
    if len(sizes) > 1:
        message = f"{name}: expected one size beside {axis.option}, got {text}"
        raise InputError(message, "several-axes", argument=name)
    return sizes[0]


# --- reading --------------------------------------------------------------------------------------


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
        used = depths or f"{LAYERS}, the default"
        raise InputError(
            "widths: expected several sizes to compare: several widths and one depth, or one width"
            f" and several depths; got widths {widths} and depths {used}",
            argument="widths",
        )
    return {"widths": width_values, "depths": depth_values}


def _whole(word: str) -> int:
    """Return a whole number, also from 2e8; 0 if it is none."""
    try:
        number = float(word)
    except ValueError:
        return 0
    if not number.is_integer():
        return 0
    if word.strip().isdecimal():
        return int(word)
    return int(number)


def read_range(text: str, name: str) -> list[int]:
    """Return sizes from text: 64:1024 doubles from 64 up to 1024; 64,96,128 is a list."""
    doubling = ":" in text
    words = text.split(":" if doubling else ",")
    numbers = [number for number in map(_whole, words) if number > 0]
    if len(numbers) < len(words) or (doubling and (len(numbers) != 2 or numbers[0] > numbers[1])):
        raise InputError(
            f"{name}: expected 64:1024 (doubling), 64,96,128 or one number; got {text!r}",
            argument=name,
        )
    if not doubling:
        return sorted(set(numbers))
    first, last = numbers
    return [first << k for k in range((last // first).bit_length())]
