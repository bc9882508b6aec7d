"""The forms in which users have data, and the batches of each.

DataLoader                         its batches, shuffled by our seed if it shuffles
data set of samples + batch_size   shuffled, whole batches, through collate_fn
list of batches                    in order, from the beginning again after its end
other iterable of batches          pass after pass
iterator, generator                one pass, held in memory
function of (step, seed)           called for every batch
function without arguments         called for any of the forms above
object with batch(step, seed)      a task of `orderone.data`, or the user's
one batch                          the same at every step
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from orderone.core.errors import InputError, with_code
from orderone.core.exact import count
from orderone.loading.map_loader import MapDataset, MapLoader, is_map_dataset
from orderone.loading.passes import (
    Calls,
    ListOfBatches,
    OnePass,
    Passes,
    fixed_size,
)
from orderone.observe.batches import is_batch

Collate: TypeAlias = Callable[[Any], object]
SIZE = "batch_size"


@runtime_checkable
class Batches(Protocol):
    """Batches by number and seed: always the same for the same two."""

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        """Return batch `number` of each seed."""
        ...

    def pass_once(self) -> Iterator[object]:
        """Yield the batches of one pass, as held-out data is read."""
        ...

    def resized(self, batch_size: int) -> "Batches":
        """Return batches of another size; raise an InputError if that is not possible."""
        ...

    @property
    def length(self) -> int | None:
        """Batches of one pass, if they are known and end."""
        ...

    @property
    def order(self) -> str:
        """Order of the batches of a later pass, as it is said in a note."""
        ...


@dataclass(frozen=True)
class OneBatch:
    """The same batch at every step."""

    batch: object

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        return [self.batch] * len(seeds)

    def pass_once(self) -> Iterator[object]:
        return iter([self.batch])

    def resized(self, batch_size: int) -> "OneBatch":
        raise fixed_size("a single batch")

    @property
    def length(self) -> None:
        return None

    @property
    def order(self) -> str:
        return "in the same order each time"


@dataclass(frozen=True)
class FunctionOfStep:
    """A function of (step, seed), and of batch_size if it names this parameter."""

    function: Callable[..., object]
    batch_size: int | None = None

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        if self.batch_size is None:
            return [self.function(number, seed) for seed in seeds]
        return [self.function(number, seed, batch_size=self.batch_size) for seed in seeds]

    def pass_once(self) -> Iterator[object]:
        raise InputError(
            "held_out: expected batches that end (a list, a DataLoader, a data set), got a function"
            " of (step, seed)",
            "wrong-type",
            argument="held_out",
        )

    def resized(self, batch_size: int) -> "FunctionOfStep":
        if not _names(self.function, SIZE):
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise InputError(
                f"batch_size: the function {name}(step, seed) of the data does not take the batch"
                f" size; write a function of (step, seed, batch_size)",
                "batch-size-fixed",
                argument="batch_size",
            )
        return FunctionOfStep(self.function, batch_size)

    @property
    def length(self) -> None:
        return None

    @property
    def order(self) -> str:
        return "as the function decides"


@dataclass(frozen=True)
class Task:
    """An object with `batch(step, seed)`; `with_batch_size(n)` returns it for other batches."""

    task: Any

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        return [self.task.batch(number, seed) for seed in seeds]

    def pass_once(self) -> Iterator[object]:
        return iter(self.task.evaluation())

    def resized(self, batch_size: int) -> "Task":
        resize = getattr(self.task, "with_batch_size", None)
        if not callable(resize):
            raise InputError(
                f"batch_size: {type(self.task).__name__} has no method with_batch_size(n) that"
                " returns the task with batches of n samples; write one",
                "batch-size-fixed",
                argument="batch_size",
            )
        return Task(resize(batch_size))

    @property
    def length(self) -> None:
        return None

    @property
    def order(self) -> str:
        return "as the function decides"


# --- reading --------------------------------------------------------------------------------------


def read_data(
    data: object, batch_size: object = None, collate_fn: object = None, argument: str = "data"
) -> Batches:
    """Return the batches of data in any of the forms above."""
    if batch_size is None:
        size = None
    else:
        size = count(cast(int, batch_size), SIZE)
    if collate_fn is not None and not callable(collate_fn):
        raise InputError(
            "collate_fn: expected a function of a list of samples that returns a batch, got"
            f" {type(collate_fn).__name__}",
            "wrong-type",
            argument="collate_fn",
        )
    collate = cast("Collate | None", collate_fn)
    samples = _of_samples(data, size, collate, argument)
    if samples is not None:
        return samples
    batches = _of_batches(data, argument)
    if batches is None and _is_factory(data):
        return _of_factory(cast(Callable[..., object], data), size, collate, argument)
    if batches is None:
        raise _unknown(data, argument)
    if collate is not None:
        raise InputError(
            f"collate_fn: {_kind(data)} has batches already; pass collate_fn with a data set of"
            " samples and batch_size, or to your DataLoader",
            "collate-without-samples",
            argument="collate_fn",
        )
    if size is None and needs_batch_size(data):
        raise _needs_size(data, argument)
    if size is None:
        return batches
    return batches.resized(size)


def needs_batch_size(data: object) -> bool:
    """Return whether data needs a batch size before it has batches."""
    if is_map_dataset(data):
        return True
    if not callable(data) or isinstance(data, (type, nn.Module)):
        return False
    parameters = _parameters(data) or []
    return any(p.name == SIZE and p.default is Parameter.empty for p in parameters)


def _of_samples(
    data: object, size: int | None, collate: Collate | None, argument: str
) -> Batches | None:
    """Return batches of a data set of samples; None if `data` is something else."""
    if is_map_dataset(data):
        if size is None:
            raise _needs_size(data, argument)
        made = MapLoader.of_dataset(cast(MapDataset, data), size, collate or default_collate)
        made.check_order()
        return made
    if isinstance(data, DataLoader) or not _is_stream_of_samples(data):
        return None
    if size is None and collate is None:
        return None
    if size is None:
        raise _needs_size(data, argument)
    loader: DataLoader[Any] = DataLoader(
        cast("IterableDataset[Any]", data), batch_size=size, collate_fn=collate, drop_last=True
    )
    return Passes(loader, loader)


def _is_stream_of_samples(data: object) -> bool:
    """Return whether this is an iterable data set of torch or of Hugging Face."""
    if isinstance(data, IterableDataset):
        return True
    return hasattr(data, "column_names") and hasattr(data, "__iter__")


def _of_batches(data: object, argument: str) -> Batches | None:
    """Return data that has batches already; None if it is something else."""
    if is_batch(data):
        return OneBatch(data)
    if isinstance(data, DataLoader):
        return _of_loader(cast("DataLoader[Any]", data))
    if callable(getattr(data, "batch", None)) and not _is_stream_of_samples(data):
        return Task(data)
    if isinstance(data, (list, tuple)):
        if not data:
            raise InputError(
                f"{argument}: expected at least one batch, got an empty {type(data).__name__}",
                "data-without-batches",
                argument=argument,
            )
        return ListOfBatches(data)
    if isinstance(data, Iterator):
        return OnePass(data)
    if isinstance(data, (str, bytes, Mapping, type, nn.Module)):
        return None
    if isinstance(data, Iterable):
        return Passes(_checked_stream(data, argument))
    if callable(data) and _takes_step_and_seed(data):
        return FunctionOfStep(data)
    return None


def _of_loader(loader: "DataLoader[Any]") -> Batches:
    iterates_itself = type(loader).__iter__ is not DataLoader.__iter__
    if iterates_itself or isinstance(loader.dataset, IterableDataset):
        return Passes(loader, loader)
    return MapLoader.of_loader(loader)


def _checked_stream(data: Iterable[object], argument: str) -> Iterable[object]:
    """Return an iterable of batches; raise an InputError if it has single samples."""
    if not _is_stream_of_samples(data):
        return data
    first = next(Passes(data).pass_once(), None)
    is_sample = not is_batch(_as_tuple(first))
    if isinstance(first, (tuple, list)) and len(first) == 2:
        target = first[1]
        is_sample = not isinstance(target, Tensor) or target.dim() == 0
    if is_sample:
        raise _needs_size(data, argument)
    return data


def _as_tuple(batch: object) -> object:
    if isinstance(batch, list):
        return tuple(batch)
    return batch


# --- functions ------------------------------------------------------------------------------------


def _parameters(function: object) -> list[Parameter] | None:
    """Return the parameters of a function; None if it is written in C."""
    try:
        return list(inspect.signature(cast(Callable[..., object], function)).parameters.values())
    except (TypeError, ValueError):
        return None


def _names(function: object, name: str) -> bool:
    parameters = _parameters(function) or []
    return any(p.name == name or p.kind is Parameter.VAR_KEYWORD for p in parameters)


def _takes_step_and_seed(function: object) -> bool:
    parameters = _parameters(function)
    if parameters is None:
        return True
    try:
        if any(p.name == SIZE for p in parameters):
            named = {SIZE: 1}
        else:
            named = {}
        signature = inspect.signature(cast(Callable[..., object], function))
        signature.bind(0, 0, **named)
    except TypeError:
        return False
    return True


def _is_factory(data: object) -> bool:
    """Return whether `data` is a function that can be called without arguments."""
    if not callable(data) or isinstance(data, (type, nn.Module)):
        return False
    parameters = _parameters(data)
    if parameters is None:
        return False
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is Parameter.empty and p.kind not in kinds]
    return all(p.name == SIZE for p in needed)


@dataclass(frozen=True)
class Factory:
    """Batches that a function without arguments makes, or a function of batch_size."""

    make: Callable[..., object]
    made: Batches
    argument: str

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        return self.made.batches(number, seeds)

    def pass_once(self) -> Iterator[object]:
        return self.made.pass_once()

    def resized(self, batch_size: int) -> Batches:
        if not _names(self.make, SIZE):
            return self.made.resized(batch_size)
        return _of_factory(self.make, batch_size, None, self.argument)

    @property
    def length(self) -> int | None:
        return self.made.length

    @property
    def order(self) -> str:
        return self.made.order


def _of_factory(
    make: Callable[..., object], size: int | None, collate: Collate | None, argument: str
) -> Batches:
    call = make
    rest = size
    if size is not None and _names(make, SIZE):
        call = partial(make, batch_size=size)
        rest = None
    elif size is None and not _callable_without_size(make):
        raise InputError(
            f"{argument}: the function {getattr(make, '__name__', make)} needs batch_size; pass"
            " batch_size=...",
            "data-needs-batch-size",
            argument="batch_size",
        )
    result = call()
    if isinstance(result, Iterator):
        batches: Batches = Passes(Calls(cast("Callable[[], Iterable[object]]", call)))
        if rest is not None:
            raise fixed_size("an iterator of batches")
        return Factory(make, batches, argument)
    if callable(result) and not isinstance(result, Iterable) and not hasattr(result, "batch"):
        raise _unknown(result, argument)
    return Factory(make, read_data(result, rest, collate, argument), argument)


def _callable_without_size(make: Callable[..., object]) -> bool:
    try:
        inspect.signature(make).bind()
    except TypeError:
        return False
    return True


# --- errors and notes -----------------------------------------------------------------------------


def _needs_size(data: object, argument: str) -> InputError:
    return InputError(
        f"{argument}: {_needing(data)}; pass batch_size=... (and"
        " collate_fn=..., which makes a batch of a list of samples), or a DataLoader of it",
        "data-needs-batch-size",
        argument="batch_size",
    )


def _needing(data: object) -> str:
    if callable(data) and not hasattr(data, "__getitem__"):
        return f"the function {getattr(data, '__name__', type(data).__name__)} needs batch_size"
    return f"{type(data).__name__} has single samples"


def _unknown(data: object, argument: str) -> InputError:
    if callable(data) and not isinstance(data, (type, nn.Module)):
        parameters = ", ".join(p.name for p in _parameters(data) or [])
        got = f"a function of ({parameters})"
    else:
        got = _kind(data)
    return InputError(
        f"{argument}: expected a DataLoader, an iterable of batches, a data set with batch_size, a"
        " task (orderone.data), a function of (step, seed) that returns a batch, or one batch for"
        f" all steps; got {got}",
        "training-data-expected",
        argument=argument,
    )


def _kind(data: object) -> str:
    if data is None:
        return "nothing"
    return type(data).__name__


def repeat_notes(batches: Batches, needed: int) -> list[str]:
    """Return a note if `needed` batches are more than one pass over the data."""
    length = batches.length
    if length is None or needed <= length:
        return []
    text = (
        f"data: {needed} batches were needed and one pass has {length}; the data was read again"
        f" from the beginning, {batches.order}"
    )
    return [with_code(text, "data-repeats")]
