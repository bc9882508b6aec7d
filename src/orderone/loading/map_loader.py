"""Batches of a map-style data set, as `torch.utils.data.DataLoader` makes them.

Batch number k of a seed depends on (seed, epoch, position in the epoch) alone: on no earlier batch,
not on the number of workers, and not on where a training was resumed.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from orderone.core.errors import InputError
from orderone.loading.random_stream import RandomStream, private_generators
from orderone.loading.sample_order import Request, SampleOrder, no_batches

MOST_ORDERS = 1024  # seeds whose order is held in memory
_POOL_OPTIONS = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)
_SAMPLED = 64  # samples that identify a data set


@runtime_checkable
class MapDataset(Protocol):
    """Samples by index; a `torch.utils.data.Dataset` and a `datasets.Dataset` have this."""

    def __getitem__(self, index: Any, /) -> Any: ...


@dataclass
class Fetch:
    """Makes the batch of a request, in this process or in a worker of a DataLoader."""

    dataset: MapDataset
    collate: Callable[[Any], object]
    batched: bool  # whether a request has several indices

    def __getitem__(self, request: Request) -> object:
        return self.with_draws(request)[0]

    def with_draws(self, request: Request) -> tuple[object, tuple[Any, ...]]:
        """Return the batch, and the states of all random generators after it was made."""
        private = private_generators(self.dataset, self.collate)
        stream = RandomStream(request.seed, private)
        with stream.active():
            batch = self.collate(self._samples(request.indices))
        return batch, stream.states

    def _samples(self, indices: Any) -> object:
        if not self.batched:
            return self.dataset[indices]
        several = getattr(self.dataset, "__getitems__", None)
        if callable(several):
            return several(indices)
        return [self.dataset[index] for index in indices]


def _as_it_is(batch: object) -> object:
    return batch


@dataclass
class _Requests:
    """Endless requests of several seeds in turn, for the workers of a DataLoader."""

    sampler: Iterable[object]
    seeds: tuple[int, ...]
    first: int

    def __iter__(self) -> Iterator[Request]:
        orders = [SampleOrder(self.sampler, seed) for seed in self.seeds]
        number = self.first
        while True:
            for order in orders:
                yield order.at(number)
            number += 1


@dataclass
class MapLoader:
    """Batches by number and seed."""

    fetch: Fetch
    sampler: Iterable[object]  # yields the indices of each batch
    loader: "DataLoader[Any] | None" = None  # the user's, for its workers
    _orders: dict[int, SampleOrder] = field(default_factory=dict, repr=False, compare=False)
    _pool: Iterator[object] | None = field(default=None, repr=False, compare=False)
    _expected: tuple[int, tuple[int, ...]] | None = None  # number and seeds of the next request

    def __getstate__(self) -> dict[str, object]:
        """Leave out what other processes make again."""
        return {**self.__dict__, "_orders": {}, "_pool": None, "_expected": None}

    @staticmethod
    def of_loader(loader: "DataLoader[Any]") -> "MapLoader":
        batched = loader.batch_sampler is not None
        sampler: Any = loader.batch_sampler if batched else loader.sampler
        for part in (sampler, getattr(sampler, "sampler", None)):
            if isinstance(part, DistributedSampler):
                raise InputError(
                    "data: expected a DataLoader of whole batches, got one with a"
                    " DistributedSampler; leave the sampler out (shuffle=True): each process takes"
                    " its rows of every batch",
                    "distributed-sampler",
                    argument="data",
                )
        dataset: Any = loader.dataset
        made = MapLoader(Fetch(dataset, loader.collate_fn, batched), sampler, loader)
        made.check_order()
        return made

    @staticmethod
    def of_dataset(
        dataset: MapDataset,
        batch_size: int,
        collate: Callable[[Any], object],
        shuffle: bool = True,
    ) -> "MapLoader":
        """Make batches of a data set; if `shuffle`, in random order and without smaller ones."""
        samples: Any = dataset
        order: Sampler[int] = RandomSampler(samples) if shuffle else SequentialSampler(samples)
        sampler = BatchSampler(order, batch_size, drop_last=shuffle)
        return MapLoader(Fetch(dataset, collate, True), sampler)

    # --- batches ----------------------------------------------------------------------------------

    def batches(self, number: int, seeds: Sequence[int]) -> list[object]:
        """Return batch `number` of each seed.

        From the second request in a row on, workers of the user's DataLoader make them ahead.
        """
        wanted = (number, tuple(seeds))
        in_a_row = wanted == self._expected
        self._expected = (number + 1, wanted[1])
        if self._has_workers and in_a_row:
            if self._pool is None:
                self._pool = self._start(number, wanted[1])
            return [next(self._pool) for _ in seeds]
        self._pool = None
        return [self.fetch[self._order(seed).at(number)] for seed in seeds]

    def with_draws(self, number: int, seed: int) -> tuple[object, tuple[Any, ...]]:
        """Return a batch, made in this process, and the states of generators afterwards."""
        return self.fetch.with_draws(self._order(seed).at(number))

    def _order(self, seed: int) -> SampleOrder:
        if seed not in self._orders and len(self._orders) >= MOST_ORDERS:
            del self._orders[next(iter(self._orders))]
        return self._orders.setdefault(seed, SampleOrder(self.sampler, seed))

    @property
    def _has_workers(self) -> bool:
        """True unless this process is itself a worker, which may not start others."""
        if self.loader is None or self.loader.num_workers == 0:
            return False
        return not multiprocessing.current_process().daemon

    def _start(self, number: int, seeds: tuple[int, ...]) -> Iterator[object]:
        options = {name: getattr(self.loader, name) for name in _POOL_OPTIONS}
        samples: Any = self.fetch
        requests: Any = _Requests(self.sampler, seeds, number)
        pool: DataLoader[object] = DataLoader(
            samples, batch_size=None, sampler=requests, collate_fn=_as_it_is, **options
        )
        with RandomStream(0).active():  # a DataLoader draws a seed for its workers
            return iter(pool)

    def pass_once(self) -> Iterator[object]:
        """Yield the batches of one epoch, always in the same order."""
        number = 0
        length = self.length
        while length is None or number < length:
            yield self.fetch[self._order(0).at(number)]
            number += 1

    # --- facts ------------------------------------------------------------------------------------

    @property
    def length(self) -> int | None:
        """Batches of an epoch, if the sampler knows it."""
        try:
            return len(self.sampler)  # pyright: ignore[reportArgumentType]
        except (TypeError, NotImplementedError):
            return None

    @property
    def order(self) -> str:
        if isinstance(getattr(self.sampler, "sampler", self.sampler), SequentialSampler):
            return "in the same order each time"
        return "in a new order each time"

    def check_order(self) -> None:
        """Raise an InputError if there are no batches, or if their order does not repeat."""
        if self.length == 0:
            raise no_batches()
        first = [SampleOrder(self.sampler, 0).at(0) for _ in range(2)]
        if first[0] != first[1]:
            raise InputError(
                f"data: {type(self.sampler).__name__} gives another order each time, whatever the"
                " seed; draw from torch, numpy, random or a generator in an attribute, or"
                " implement set_epoch(epoch)",
                "data-order-not-repeatable",
                argument="data",
            )

    def resized(self, batch_size: int) -> "MapLoader":
        if type(self.sampler) is not BatchSampler:
            raise InputError(
                "batch_size: the DataLoader has a batch_sampler of its own (or batch_size=None),"
                " which decides the size; pass batch_size to it, or the data set itself as data",
                "batch-size-fixed",
                argument="batch_size",
            )
        sampler = BatchSampler(self.sampler.sampler, batch_size, self.sampler.drop_last)
        made = MapLoader(self.fetch, sampler, self.loader)
        made.check_order()
        return made

    def samples(self) -> list[object]:
        """Return evenly spaced samples, which identify the data set; none if it has no length."""
        try:
            number = len(self.fetch.dataset)  # pyright: ignore[reportArgumentType]
            indices = sorted({i * (number - 1) // (_SAMPLED - 1) for i in range(_SAMPLED)})
            with RandomStream(0, private_generators(self.fetch.dataset)).active():
                return [number, *[self.fetch.dataset[i] for i in indices]]
        except (TypeError, KeyError, NotImplementedError, IndexError):
            return []


def is_map_dataset(data: object) -> bool:
    """Return whether `data` is a data set of samples by index: of torch or of Hugging Face."""
    if isinstance(data, Dataset):
        return not isinstance(data, IterableDataset)
    return hasattr(data, "__getitem__") and hasattr(data, "column_names")
