"""What `orderone check` checks: one of its own models or the user's, at which sizes, on which
batch."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from orderone.cli.models import LAYERS, LONGEST, MODELS
from orderone.cli.unused import no_use
from orderone.core.errors import one_of
from orderone.core.exact import count

WIDTHS = "64:512"
WIDTH = "128"  # where widths grow, and where depths do
MODEL = "gpt2"
BATCH = 16
LENGTH = 64  # if nothing else is said


@dataclass(frozen=True)
class Subject:
    name: str
    about: str
    build: Callable[[int], Any]
    sizes: dict[str, list[int]]  # {"widths": ...} or {"depths": ...}
    batches: Any


def own_model(
    name: str | None,
    sizes: dict[str, list[int]],
    batches: str | None,
    seed: int,
    batch: int | None = None,
    length: int | None = None,
) -> Subject:
    """One that orderone knows, on its own batch or on one of the user's."""
    name = one_of(MODEL if name is None else name, MODELS, "model")
    model = MODELS[name]
    odd = [width for width in sizes["widths"] if width % model.multiple]
    if odd:
        raise ValueError(
            f"widths: expected multiples of {model.multiple}, the head size of {name}; got {odd[0]}"
        )
    (growing, grown), (_, [fixed]) = _growing_first(sizes)
    build = partial(_one_argument, model.build, growing, fixed)
    if batches:
        no_use("--batches", batch=batch, length=length)
        data = given_batches(batches)
    else:
        data = _own_batch(name, seed, batch, length)
    return Subject(name, model.about, build, {growing: grown}, data)


def _own_batch(name: str, seed: int, batch: int | None, length: int | None) -> Any:
    model = MODELS[name]
    size = count(BATCH if batch is None else batch, "batch")
    if not model.reads_text:
        no_use(f"{name}, which sees images,", length=length)
        return model.batch(seed, size, 0)
    return model.batch(
        seed, size, count(LENGTH if length is None else length, "length", least=2, most=LONGEST)
    )


def given_model(builder: str, sizes: dict[str, list[int]], batches: str | None) -> Subject:
    """The user's own: a function of whatever grows."""
    if batches is None:
        raise ValueError(
            "batches: --builder needs --batches package.module:function, what to train your"
            " model on"
        )
    build = load(builder, "builder")
    if not callable(build):
        raise ValueError(
            f"builder: expected a function of the width, {builder} is a {type(build).__name__}"
        )
    (growing, grown), _ = _growing_first(sizes)
    return Subject(
        builder, f"{builder} on {batches}", build, {growing: grown}, given_batches(batches)
    )


def given_batches(where: str) -> Any:
    """What the function returns; or the thing itself if it is no function."""
    found = load(where, "batches")
    return found() if callable(found) else found


def read_sizes(widths: str | None, depths: str | None) -> dict[str, list[int]]:
    """Several of one of them, a single one of the other."""
    deep = read_range(depths or str(LAYERS), "depths")
    wide = read_range(widths or (WIDTH if len(deep) > 1 else WIDTHS), "widths")
    if (len(deep) > 1) == (len(wide) > 1):
        raise ValueError(
            "widths: expected several widths, or several depths and one width; got widths"
            f" {widths or wide} and depths {depths or deep}"
        )
    return {"widths": wide, "depths": deep}


def read_range(text: str, name: str) -> list[int]:
    """64:1024 doubles from 64 up to 1024; 64,96,128 is a list."""
    doubling = ":" in text
    words = text.split(":" if doubling else ",")
    numbers = [int(word) for word in words if word.strip().isdecimal() and int(word) > 0]
    if len(numbers) < len(words) or (doubling and (len(numbers) != 2 or numbers[0] > numbers[1])):
        raise ValueError(
            f"{name}: expected 64:1024 (doubling), 64,96,128 or one number; got {text!r}"
        )
    if not doubling:
        return sorted(set(numbers))
    first, last = numbers
    return [first << k for k in range((last // first).bit_length())]


def _growing_first(sizes: dict[str, list[int]]) -> list[tuple[str, list[int]]]:
    return sorted(sizes.items(), key=lambda item: -len(item[1]))


def _one_argument(build: Callable[[int, int], Any], growing: str, fixed: int, size: int) -> Any:
    if growing == "widths":
        return build(size, fixed)
    return build(fixed, size)


def load(where: str, name: str) -> Any:
    """`package.module:thing`, found from the current folder as `python -m` would."""
    module, colon, thing = where.partition(":")
    if not (module and colon and thing):
        raise ValueError(f"{name}: expected package.module:function, got {where!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), thing)
    except AttributeError as error:
        raise ValueError(f"{name}: {module} has no {thing} ({error})") from error
    except Exception as error:  # a module of the user's may raise anything
        raise ValueError(
            f"{name}: cannot import {module} ({type(error).__name__}: {error})"
        ) from error
