"""Batches of iterables: pass after pass over one that can be read again, or one pass over one
that cannot."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from orderone.core.errors import InputError
from orderone.loading.random_stream import RandomStream, mixed_seed, private_generators
from orderone.loading.sample_order import no_batches, set_epoch
from orderone.torch_compat import tree_leaves

MOST_READERS = 256  # seeds whose place in the data is remembered
MOST_BYTES = 1 << 30  # of batches that are held in memory
LOOKED_AT = 4  # batches that are held whatever their size: they identify the data
REMEDY = (
    "pass a DataLoader, a list of batches, or a function without arguments that returns a new"
    " iterator"
)


@dataclass
class _Reader:
    """Place of one seed in its passes over the data."""

    batches: Iterator[object]
    number: int = -1  # of `last`
    last: object = None


@dataclass
class Passes:
    """Batches of an iterable that can be read again. Each pass has a random stream of its own."""

    data: Iterable[object]
    loader: "DataLoader[Any] | None" = None  # if `data` is one, which may change its batch size
    length: int | None = None  # batches of a pass, known after its end
    _readers: dict[int, _Reader] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Leave out open iterators: other processes read from the beginning."""
        return {**self.__dict__, "_readers": {}}

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        return [self._batch(number, seed) for seed in seeds]

    def _batch(self, number: int, seed: int) -> object:
        reader = self._readers.get(seed)
        if reader is None or number < reader.number:
            if len(self._readers) >= MOST_READERS:
                del self._readers[next(iter(self._readers))]
            reader = _Reader(self._all(seed))
            self._readers[seed] = reader
        while reader.number < number:
            reader.last = next(reader.batches)
            reader.number += 1
        return reader.last

    def _all(self, seed: int) -> Iterator[object]:
        epoch = 0
        while True:
            number = 0
            for batch in self._one_pass(seed, epoch):
                yield batch
                number += 1
            if not number:
                raise no_batches()
            self.length = number
            epoch += 1

    def _one_pass(self, seed: int, epoch: int) -> Iterator[object]:
        stream = RandomStream(mixed_seed(seed, epoch), private_generators(self.data))
        with stream.active():
            set_epoch(self.data, epoch)
            batches = iter(self.data)
        while True:
            with stream.active():
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch

    def pass_once(self) -> Iterator[object]:
        return self._one_pass(0, 0)

    @property
    def order(self) -> str:
        return "in the order that it has then"

    def resized(self, batch_size: int) -> "Passes":
        if self.loader is None or self.loader.batch_size is None:
            raise fixed_size("an iterable of batches")
        names = ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout")
        others = ("worker_init_fn", "multiprocessing_context", "prefetch_factor", "generator")
        options = {name: getattr(self.loader, name) for name in (*names, *others)}
        loader: DataLoader[Any] = DataLoader(self.loader.dataset, batch_size=batch_size, **options)
        return Passes(loader, loader)


@dataclass(frozen=True)
class Calls:
    """Iterable that calls a function for a new iterator each time."""

    make: Callable[[], Iterable[object]]

    def __iter__(self) -> Iterator[object]:
        return iter(self.make())


@dataclass
class ListOfBatches:
    """A list of batches, read from the beginning again after its end; all seeds read the same."""

    items: Sequence[object]

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        return [self.items[number % len(self.items)] for _ in seeds]

    def pass_once(self) -> Iterator[object]:
        return iter(self.items)

    @property
    def length(self) -> int:
        return len(self.items)

    @property
    def order(self) -> str:
        return "in the same order each time"

    def resized(self, batch_size: int) -> "ListOfBatches":
        raise fixed_size("a list of batches")


@dataclass
class OnePass:
    """Batches of an iterator, which can be read once.

    They are held in memory up to a limit, so that they can be read again. Past the limit only the
    next batch can be read.
    """

    data: Iterator[object]
    length: int | None = None  # known after the end
    _start: list[object] = field(default_factory=list, repr=False)
    _bytes: int = 0
    _read: int = 0
    _last: object = None

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        return [self._batch(number)] * len(seeds)

    def _batch(self, number: int) -> object:
        if self.length is not None:
            number %= self.length
        while number >= self._read and self.length is None:
            self._read_one()
        if self.length is not None:
            number %= self.length
        if number < len(self._start):
            return self._start[number]
        if number == self._read - 1:
            return self._last
        raise InputError(
            f"data: batch {number} of the {type(self.data).__name__} was read before, and an"
            f" iterator of more than {MOST_BYTES >> 20} MiB is read only once; {REMEDY}",
            "data-read-once",
            argument="data",
        )

    def _read_one(self) -> None:
        try:
            batch = next(self.data)
        except StopIteration:
            self._end()
            return
        self._last = batch
        self._read += 1
        self._bytes += size_of(batch)
        if self._bytes <= MOST_BYTES or self._read <= LOOKED_AT:
            self._start.append(batch)
        else:
            self._start.clear()

    def _end(self) -> None:
        if not self._read:
            raise no_batches()
        if len(self._start) < self._read:
            raise InputError(
                f"data: the {type(self.data).__name__} ended after {self._read} batches, before"
                f" the training did; {REMEDY}, or train for at most {self._read} batches",
                "data-read-once",
                argument="data",
            )
        self.length = self._read

    def pass_once(self) -> Iterator[object]:
        number = 0
        while self.length is None or number < self.length:
            batch = self._batch(number)
            if self.length is not None and number >= self.length:
                return
            yield batch
            number += 1

    def first(self, number: int) -> ListOfBatches:
        """Return the first batches as a list; fewer if the iterator ends before."""
        while self._read < number and self.length is None:
            self._read_one()
            if len(self._start) < self._read:
                raise InputError(
                    f"data: the first {self._read} of {number} batches of the"
                    f" {type(self.data).__name__} are larger than {MOST_BYTES >> 20} MiB, too much"
                    f" to hold for all trainings; {REMEDY}",
                    "data-read-once",
                    argument="data",
                )
        return ListOfBatches(self._start[:number])

    @property
    def order(self) -> str:
        return "in the same order each time"

    def resized(self, batch_size: int) -> "OnePass":
        raise fixed_size("an iterator of batches")


def fixed_size(what: str) -> InputError:
    return InputError(
        f"batch_size: {what} has batches of a fixed size; pass a DataLoader, a data set, or a"
        " function with a parameter batch_size",
        "batch-size-fixed",
        argument="batch_size",
    )


def size_of(batch: object) -> int:
    """Return the bytes of the tensors and arrays in a batch."""
    total = 0
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
        elif isinstance(leaf, np.ndarray):
            total += leaf.nbytes
    return total
