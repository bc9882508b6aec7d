"""How far outputs have moved: those of every pass on one batch beside those of the first."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orderone.observe.device_queue import version
from orderone.observe.history import Key
from orderone.seeding import seeded
from orderone.torch_compat import buffer_registry, foreach_sub, parameter_registry

Pair = tuple[int, int]  # number of a tensor, id of what it is compared with
SEED = 0  # of what is random in a repeated pass: the same masks every time


class Reference:
    """The outputs of a first pass, by module and call: a shared module is called several times in
    one pass."""

    def __init__(self) -> None:
        self._first: dict[tuple[Key, int], Tensor] = {}
        self._complete = False
        self.rewind()

    def rewind(self) -> None:
        """A new pass begins; what the first one has left is the reference."""
        self._complete = bool(self._first)
        self._calls: dict[Key, int] = {}
        self._copies: dict[int, Tensor] = {}
        self._compared: dict[Pair, int] = {}
        self._waiting: dict[
            Pair, tuple[Tensor, Tensor, int]
        ] = {}  # both, and the version of the one
        self._asked: list[tuple[Key, Pair]] = []
        self.waiting = 0  # bytes

    @torch.no_grad()
    def change(self, key: Key, x: Tensor, number: int, slot: Callable[[Tensor], int]) -> int | None:
        """The `slot` of the change of `x` since the first pass; `number` tells tensors apart, so
        that one that several modules give is copied and compared once."""
        first = self._counterpart(key, x, number)
        if first is None:
            return None
        pair = (number, id(first))
        if pair not in self._compared:
            self._compared[pair] = slot(x.detach() - first)
        return self._compared[pair]

    def await_change(self, key: Key, x: Tensor, number: int) -> None:
        """The same for a pass without gradients, to be computed by `changes` together with all
        others."""
        first = self._counterpart(key, x, number)
        if first is not None:
            pair = (number, id(first))
            self._asked.append((key, pair))
            if pair not in self._waiting:
                self._waiting[pair] = x, first, version(x)
                self.waiting += x.nbytes

    @torch.no_grad()
    def changes(
        self, slots: Callable[[Iterable[Tensor]], Iterable[int]]
    ) -> Iterator[tuple[Key, int | None]]:
        """All that are awaited. What was written over since it was seen has none."""
        waiting = self._waiting
        asked = self._asked
        self._waiting = {}
        self._asked = []
        self.waiting = 0
        whole = {
            pair: (x, first) for pair, (x, first, seen) in waiting.items() if version(x) == seen
        }
        now = [x for x, _ in whole.values()]
        before = [first for _, first in whole.values()]
        differences = foreach_sub(now, before) if whole else ()
        found = dict(zip(whole, slots(differences), strict=True))
        return ((key, found.get(pair)) for key, pair in asked)

    def _counterpart(self, key: Key, x: Tensor, number: int) -> Tensor | None:
        """In the first pass, `x` itself becomes one."""
        call = self._calls[key] = self._calls.get(key, -1) + 1
        if not self._complete:
            if number not in self._copies:
                self._copies[number] = x.detach().clone()
            self._first[key, call] = self._copies[number]
            return None
        first = self._first.get((key, call))
        if first is None or first.shape != x.shape:  # experts, for one, see other tokens every time
            return None
        return first


@contextmanager
def repeatable(model: nn.Module) -> Iterator[None]:
    """The same random numbers every time, in the mode the model is in; buffers and random state
    stay as they were."""
    modules = [*model.modules()]
    buffers = [
        (module, dict(buffer_registry(module))) for module in modules if buffer_registry(module)
    ]
    contents = [
        (buffer, buffer.clone())
        for _, own in buffers
        for buffer in own.values()
        if buffer is not None
    ]
    parameters = (
        p for module in modules for p in parameter_registry(module).values() if p is not None
    )
    try:
        with seeded(SEED, sorted({p.get_device() for p in parameters if p.is_cuda})):
            yield
    finally:
        for module, own in buffers:  # some are written into, some replaced
            buffer_registry(module).update(own)
        for buffer, content in contents:
            buffer.data.copy_(
                content
            )  # without a new version: a graph may hold it, and finds it as it was
