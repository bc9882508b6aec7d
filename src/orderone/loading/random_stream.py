"""Streams of random numbers that neither read nor change the state of the caller's generators.

A data set may draw from torch, numpy, `random`, or from generators of its own. A stream holds one
state for each of them, and exchanges it with the present state while it is active.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_NUMPY_SEEDS = 2**32
_DEEPEST = 4  # levels of attributes that are searched for generators
_LONGEST = 64  # longer containers hold data, not transforms


def mixed_seed(*parts: int) -> int:
    """Return a seed of 63 bits that depends on all parts."""
    text = " ".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


@dataclass(frozen=True)
class Generator:
    """Access to the state of one generator of any library."""

    get: Callable[[], Any]
    set: Callable[[Any], object]
    seed: Callable[[int], object]


def _set_numpy_seed(seed: int) -> None:
    np.random.seed(seed % _NUMPY_SEEDS)


def _global_generators() -> list[Generator]:
    generators = [
        Generator(random.getstate, random.setstate, random.seed),
        Generator(np.random.get_state, np.random.set_state, _set_numpy_seed),
        _of_torch(torch.default_generator),
    ]
    if torch.cuda.is_initialized():
        generators += [_of_torch(generator) for generator in torch.cuda.default_generators]
    return generators


def _of_torch(generator: torch.Generator) -> Generator:
    return Generator(generator.get_state, generator.set_state, generator.manual_seed)


def _of_numpy(generator: np.random.Generator) -> Generator:
    bits = generator.bit_generator

    def set_state(state: Mapping[str, Any]) -> None:
        bits.state = state

    def set_seed(seed: int) -> None:
        bits.state = type(bits)(seed).state

    return Generator(lambda: bits.state, set_state, set_seed)


def private_generators(*owners: object) -> list[Generator]:
    """Return the generators that objects hold in their attributes, at any of a few levels."""
    generators: dict[int, Generator] = {}
    seen: set[int] = set()

    def search(thing: object, level: int) -> None:
        if id(thing) in seen or level > _DEEPEST:
            return
        seen.add(id(thing))
        if isinstance(thing, torch.Generator):
            generators[id(thing)] = _of_torch(thing)
        elif isinstance(thing, random.Random):
            generators[id(thing)] = Generator(thing.getstate, thing.setstate, thing.seed)
        elif isinstance(thing, np.random.Generator):
            generators[id(thing)] = _of_numpy(thing)
        elif isinstance(thing, np.random.RandomState):
            generators[id(thing)] = Generator(
                thing.get_state, thing.set_state, lambda seed: thing.seed(seed % _NUMPY_SEEDS)
            )
        elif isinstance(thing, (list, tuple)):
            if len(thing) <= _LONGEST:
                for part in thing:
                    search(part, level + 1)
        elif isinstance(thing, dict):
            if len(thing) <= _LONGEST:
                for part in thing.values():
                    search(part, level + 1)
        elif not isinstance(thing, (type, torch.Tensor, np.ndarray)):
            for part in list(getattr(thing, "__dict__", {}).values()):
                search(part, level + 1)

    for owner in owners:
        search(owner, 0)
    return list(generators.values())


class RandomStream:
    """Random numbers that depend on `seed` alone, however often the stream is interrupted."""

    def __init__(self, seed: int, private: Sequence[Generator] = ()):
        self._seed = seed
        self._private = private
        self._states: list[Any] | None = None  # None: not started

    @property
    def states(self) -> tuple[Any, ...]:
        """States of all generators when the stream was last active."""
        return tuple(self._states or ())

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw from this stream; restore the caller's generators afterwards."""
        generators = [*_global_generators(), *self._private]
        callers = [generator.get() for generator in generators]
        try:
            if self._states is None:
                for generator in generators:
                    generator.seed(self._seed)
            else:
                for generator, state in zip(generators, self._states, strict=False):
                    generator.set(state)
            yield
            self._states = [generator.get() for generator in generators]
        finally:
            for generator, state in zip(generators, callers, strict=True):
                generator.set(state)
