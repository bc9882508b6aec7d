"""Order of the samples: the indices of every batch, epoch after epoch, for one seed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from orderone.core.errors import InputError
from orderone.loading.random_stream import RandomStream, mixed_seed, private_generators


@dataclass(frozen=True)
class Request:
    """Indices of one batch, and the seed of the random numbers that are drawn to make it."""

    seed: int
    indices: Any  # a list of indices, or one index if the sampler makes no batches


class SampleOrder:
    """Requests of one seed by number. Earlier numbers start again from the beginning."""

    def __init__(self, sampler: Iterable[object], seed: int):
        self._sampler = sampler
        self._seed = seed
        self._private = private_generators(sampler)
        self._next = 0
        self._requests: Iterator[Request] | None = None
        self._last: Request | None = None

    def at(self, number: int) -> Request:
        if self._last is not None and number == self._next - 1:
            return self._last
        if self._requests is None or number < self._next:
            self._requests = self._all()
            self._next = 0
        request = next(self._requests)
        while self._next < number:
            request = next(self._requests)
            self._next += 1
        self._next += 1
        self._last = request
        return request

    def _all(self) -> Iterator[Request]:
        epoch = 0
        while True:
            position = 0
            stream = RandomStream(mixed_seed(self._seed, epoch), self._private)
            with stream.active():
                set_epoch(self._sampler, epoch)
                indices_of_batches = iter(self._sampler)
            while True:
                with stream.active():
                    indices = next(indices_of_batches, None)
                if indices is None:
                    break
                yield Request(mixed_seed(self._seed, epoch, position), indices)
                position += 1
            if not position:
                raise no_batches()
            epoch += 1


def set_epoch(thing: object, epoch: int) -> None:
    """Tell a sampler or data set the number of the epoch, if it asks for it.

    Samplers for several processes and streamed data sets of Hugging Face have `set_epoch`.
    """
    for part in (thing, getattr(thing, "sampler", None), getattr(thing, "dataset", None)):
        tell = getattr(part, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def no_batches() -> InputError:
    return InputError(
        "data: expected at least one batch, got none; with drop_last=True the batch size must not"
        " be larger than the data set, and a generator must not be used up",
        "data-without-batches",
        argument="data",
    )
