"""State of objects that have no attributes: iterators, context variables, buffers, digests.

They keep it in C, or in a frame. Only types of Python itself are
read: the state of others may be as large as a data set.
"""

import copyreg
import functools
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from hashlib import sha256
from itertools import count
from threading import local
from types import GeneratorType

LRU_CACHE = functools._lru_cache_wrapper
# types whose values are state wherever code can reach them, though a library defines them
HOLDERS = (local, ContextVar, GeneratorType, Iterator, bytearray, LRU_CACHE)


def inner_state(value: object) -> Iterator[tuple[str, object]]:
    """Yield the state of an object of Python that has no attributes."""
    if isinstance(value, ContextVar):
        yield "value", value.get(None)
    elif isinstance(value, count):
        yield "next", repr(value)
    elif isinstance(value, GeneratorType):
        frame = value.gi_frame  # None after its end
        if frame is not None:
            yield "instruction", frame.f_lasti
            yield from frame.f_locals.items()
    elif _is_of_python(type(value)):
        yield from _exported(value)


def _is_of_python(kind: type) -> bool:
    root = kind.__module__.partition(".")[0]
    return root == "builtins" or root in sys.stdlib_module_names


def _exported(value: object) -> Iterator[tuple[str, object]]:
    """Yield what an object gives away: its bytes, its digest, or what `pickle` would write."""
    try:
        content = memoryview(value)  # type: ignore[arg-type]
        yield "bytes", sha256(content.tobytes()).hexdigest()
        return
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(value, "digest_size"):  # of hashlib and hmac
        yield "digest", value.digest()  # type: ignore[attr-defined]
        return
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 deprecates this for itertools
            if reduce is None:
                reduced = value.__reduce_ex__(2)
            else:
                reduced = reduce(value)
    except Exception:  # locks, files and the like cannot be written
        return
    if isinstance(reduced, tuple):
        yield from (("written", part) for part in reduced[1:3])
