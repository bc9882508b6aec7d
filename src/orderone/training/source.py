"""Training data of a sweep or a training: batches, held-out batches, and their identity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import default_collate

from orderone.core.canonical import digest
from orderone.core.errors import InputError, with_code
from orderone.core.exact import count
from orderone.core.file_digests import file_digests
from orderone.loading.forms import (
    Batches,
    Factory,
    FunctionOfStep,
    OneBatch,
    Task,
    read_data,
    repeat_notes,
)
from orderone.loading.map_loader import MapLoader, is_map_dataset
from orderone.loading.passes import (
    LOOKED_AT,
    MOST_BYTES,
    Calls,
    ListOfBatches,
    OnePass,
    Passes,
    size_of,
)
from orderone.observe.batches import Loss, ModelInputs, as_batch, call_inputs
from orderone.observe.precision import Precision
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.fingerprint import identity, identity_of_part

Batch: TypeAlias = object  # tensors in any nesting: inputs, keyword arguments, inputs and targets
LONGEST_PATH = 1024  # characters; longer texts of a data set are no paths
HELD_OUT_SIZE = 64  # samples in a batch of a held-out data set, if there is no batch size


@dataclass(frozen=True)
class Source:
    """Source of batches: `batch(step, seed)` returns the same batch for the same arguments.

    `stacked`, if there is one, returns the batches of many seeds at once.
    """

    name: object  # identifies the data in a fingerprint
    batch: Callable[[int, int], Batch]
    held_out: Callable[[], Sequence[Batch]] = tuple
    loss: Loss | None = None
    stacked: Callable[..., Batch] | None = field(default=None, compare=False)
    named: bool = True  # False: `name` is made from the code of a function or class
    content: object = None  # what the data holds, if `name` does not say it
    batches: Batches | None = field(default=None, compare=False)  # as the user has them
    notes: tuple[str, ...] = ()

    def inputs(self) -> ModelInputs:
        """Return example inputs of the model."""
        return call_inputs(self.at(0, 0))

    def at(self, step: int, seed: int) -> Batch:
        """Return the batch of a step; raise an InputError if it is not a batch."""
        return self.many(step, [seed])[0]

    def many(self, step: int, seeds: Sequence[int]) -> list[Batch]:
        """Return the batches of a step for several seeds."""
        if self.batches is None:
            batches = [self.batch(step, seed) for seed in seeds]
        else:
            batches = self.batches.batches(step, seeds)
        return [_checked(batch, step) for batch in batches]

    def resized(self, batch_size: int) -> "Source":
        """Return the same data in batches of another size; held-out batches stay the same."""
        if self.batches is None:
            batches = read_data(self.batch).resized(batch_size)
        else:
            batches = self.batches.resized(batch_size)
        stacked = None
        if isinstance(batches, Task):
            stacked = getattr(batches.task, "stacked", None)
        return replace(self, batch=_One(batches), batches=batches, stacked=stacked)

    def notes_on(self, needed: int) -> list[str]:
        """Return notes on a training that needs so many batches."""
        if self.batches is None:
            return list(self.notes)
        return [*self.notes, *repeat_notes(self.batches, needed)]

    @property
    def code(self) -> tuple[object, ...]:
        """Functions and classes of the user that the data consists of."""
        batches = self.batches
        if isinstance(batches, MapLoader):
            return type(batches.fetch.dataset), batches.fetch.collate
        return (self.batch,)


@dataclass(frozen=True)
class _One:
    """One batch at a time; a class, so that it can be pickled."""

    batches: Batches

    def __call__(self, step: int, seed: int) -> Batch:
        return self.batches.batches(step, [seed])[0]


def _checked(batch: object, step: int) -> Batch:
    plain = as_batch(batch)
    if isinstance(plain, Mapping) or any(isinstance(x, Tensor) for x in tree_leaves(plain)):
        return plain
    raise InputError(
        "data: expected a batch (a tensor, a dict of keyword arguments, or a pair of inputs and"
        f" targets) for step {step}, got {type(batch).__name__}; check that the function"
        " or collate_fn returns it",
        "batch-expected",
        argument="data",
    )


def read_source(
    data: object,
    batch_size: object = None,
    collate_fn: object = None,
    *,
    held_out: object = None,
    held_out_size: object = None,
    hold: int | None = None,
) -> Source:
    """Return the source of data in any form that `orderone.loading.forms` lists.

    With `hold`, so many batches of an iterator are read now and held, because several trainings
    read them. `held_out_size` is the batch size of a held-out data set.
    """
    if isinstance(data, Source):
        source = data
    else:
        batches = read_data(data, batch_size, collate_fn)
        if hold is not None and isinstance(batches, OnePass):
            batches = batches.first(hold)
        source = _source(batches)
    if held_out is None:
        return source
    return replace(source, held_out=HeldOut(read_held_out(held_out, held_out_size, collate_fn)))


def _source(batches: Batches) -> Source:
    if isinstance(batches, Task):
        return _task_source(batches.task, batches)
    if isinstance(batches, (OneBatch, ListOfBatches)):
        if isinstance(batches, OneBatch):
            name = batches.batch
        else:
            name = batches.items
        return Source(identity(name), _One(batches), batches=batches)
    if isinstance(batches, FunctionOfStep):
        return Source(identity(batches.function), batches.function, named=False, batches=batches)
    if isinstance(batches, Factory) and isinstance(batches.made, Task):
        return _task_source(batches.made.task, batches)
    content, repeats = _content(batches)
    notes: tuple[str, ...] = ()
    if not repeats:
        text = (
            "data: the same seed gave different batches or other random draws when they were read"
            " twice, so that trainings cannot be repeated exactly, and may depend on each other;"
            " draw random numbers from torch, numpy, random or a generator in an attribute of the"
            " data set, each time a sample is read"
        )
        notes = (with_code(text, "data-not-repeatable"),)
    return Source(
        name={"code": _code(batches), "content": content},
        batch=_One(batches),
        named=False,
        content=content,
        batches=batches,
        notes=notes,
    )


def _task_source(task: Any, batches: Batches) -> Source:
    name = getattr(task, "name", None)
    return Source(
        name=name or identity(task),
        batch=task.batch,
        held_out=getattr(task, "evaluation", tuple),
        loss=getattr(task, "loss", None),
        stacked=getattr(task, "stacked", None),
        named=bool(name),
        batches=batches,
    )


# --- identity -------------------------------------------------------------------------------------


def _code(batches: Batches) -> object:
    """Identify the code that makes the batches; code of libraries by its name."""
    if isinstance(batches, Factory):
        return identity(batches.make)
    if isinstance(batches, Passes):
        if isinstance(batches.data, Calls):
            return identity(batches.data.make)
        return identity_of_part(type(batches.data))
    if isinstance(batches, MapLoader):
        return [
            identity_of_part(type(batches.fetch.dataset)),
            identity_of_part(type(batches.sampler)),
            identity_of_part(type(getattr(batches.sampler, "sampler", None))),
            getattr(batches.sampler, "batch_size", None),
            getattr(batches.sampler, "drop_last", None),
            _collate(batches.fetch.collate),
        ]
    return identity_of_part(type(batches))


def _collate(collate: object) -> object:
    """Identify a function or a callable object that collates; the content covers its settings."""
    if callable(collate) and hasattr(collate, "__code__"):
        return identity_of_part(collate)
    return identity_of_part(type(collate))


def _content(batches: Batches) -> tuple[object, bool]:
    """Return a hash of what the data holds, and whether reading it twice gives the same.

    A data set that draws fewer numbers when it is read again keeps what it has drawn, so that
    batches depend on who has read them first.

    It is made from the first batches of seed 0, from evenly spaced samples of a data set, from the
    tensors that a data set holds, and from the files whose paths it holds.
    """
    if isinstance(batches, Factory):
        inner = batches.made
    else:
        inner = batches
    readings: list[str] = []
    draws: list[str] = []  # of both readings
    times = 1 if isinstance(inner, OnePass) else 2
    for _ in range(times):
        parts: list[object] = []
        for number in range(LOOKED_AT):
            if isinstance(inner, MapLoader):
                batch, states = inner.with_draws(number, 0)
                draws.append(digest(identity(states)))
            else:
                batch = inner.batches(number, [0])[0]
            parts.append(identity(batch))
        if isinstance(inner, MapLoader):
            parts.append(inner.length)
            parts.append(identity(inner.samples()))
            parts.append(_arrays(inner.fetch.dataset))
            parts.append(file_digests(_files(inner.fetch.dataset)))
        readings.append(digest(parts))
    half = len(draws) // 2
    if readings[0] != readings[-1] or draws[:half] != draws[half:]:
        return None, False
    return readings[0], True


def _arrays(dataset: object) -> list[object]:
    """Identify the tensors of a data set, unless they are too large to read."""
    tensors: list[object] = []
    for _, value in sorted(getattr(dataset, "__dict__", {}).items()):
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor) and size_of(leaf) <= MOST_BYTES:
                tensors.append(identity(leaf))
    return tensors


def _files(dataset: object) -> list[Path]:
    """Return the files whose paths a data set holds, complete or without a folder it also holds."""
    leaves: dict[str, None] = {}
    for _, value in sorted(getattr(dataset, "__dict__", {}).items()):
        for leaf in tree_leaves(value):
            if isinstance(leaf, (str, PurePath)) and _may_be_path(str(leaf)):
                leaves[str(leaf)] = None
    folders = [Path(leaf) for leaf in leaves if Path(leaf).is_dir()]
    files: list[Path] = []
    for leaf in leaves:
        if not Path(leaf).suffix:
            continue
        candidates = [Path(leaf), *(folder / leaf for folder in folders)]
        files += [path for path in candidates if path.is_file()][:1]
    return files


def _may_be_path(text: str) -> bool:
    return 0 < len(text) <= LONGEST_PATH and text.isprintable()


# --- held-out data --------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """Held-out batches that the user passed beside the data."""

    batches: Sequence[Batch]

    def __call__(self) -> Sequence[Batch]:
        return self.batches


def read_held_out(held_out: object, batch_size: object, collate_fn: object) -> list[Batch]:
    """Return all batches of one pass over held-out data, which stay in memory."""
    batches = _held_out_batches(held_out, batch_size, collate_fn)
    read: list[Batch] = []
    total = 0
    for batch in batches.pass_once():
        read.append(_checked(batch, len(read)))
        total += size_of(read[-1])
        if total > MOST_BYTES:
            raise InputError(
                f"held_out: expected at most {MOST_BYTES >> 20} MiB, got more in the first"
                f" {len(read)} batches; pass fewer batches",
                "held-out-too-large",
                argument="held_out",
            )
    if not read:
        raise InputError(
            "held_out: expected at least one batch, got none",
            "data-without-batches",
            argument="held_out",
        )
    return read


def _held_out_batches(held_out: object, batch_size: object, collate_fn: object) -> Batches:
    if not is_map_dataset(held_out):
        return read_data(held_out, argument="held_out")
    dataset: Any = held_out
    collate: Any = collate_fn or default_collate
    size: Any = min(len(dataset), HELD_OUT_SIZE) if batch_size is None else batch_size
    size = count(size, "batch_size")
    return MapLoader.of_dataset(dataset, size, collate, shuffle=False)


def moved(batch: Batch, device: torch.device, precision: str) -> Batch:
    """Move a batch to the device; cast floats to the precision of the model."""
    if isinstance(batch, Mapping):
        batch = dict(batch)
    batch = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)
    return Precision(precision).cast_batch(batch)
