"""Whether a pass is being recorded: captured by a CUDA graph, or traced (`traced.py`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


def is_recorded() -> bool:
    """Return whether the operations that run now will be repeated later without Python."""
    if _tracing.get():
        return True
    return torch.backends.cuda.is_built() and torch.cuda.is_current_stream_capturing()


@contextmanager
def tracing() -> Iterator[None]:
    """Say within this context that a pass is being traced."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)
