"""Passes that are being recorded: captured by a CUDA graph, or traced (`traced.py`)."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from unittest.mock import patch

import torch
from torch import Tensor

EMPTY = "The CUDA Graph is empty"  # torch's warning if the first operation cannot be captured

_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


def _nothing(values: Tensor) -> bool:
    return False


_is_known: ContextVar[Callable[[Tensor], bool]] = ContextVar("known values", default=_nothing)


def is_recorded() -> bool:
    """Return whether the operations that run now will be repeated later without Python."""
    if _tracing.get():
        return True
    # a build of torch with CUDA raises an error here on a machine without a GPU
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_known(values: Tensor) -> bool:
    """Return whether these values are the same in every pass that repeats the recorded one."""
    return _is_known.get()(values)


@contextmanager
def known_by(is_known: Callable[[Tensor], bool]) -> Iterator[None]:
    """Say within this context which values are the same in every pass."""
    token = _is_known.set(is_known)
    try:
        yield
    finally:
        _is_known.reset(token)


@contextmanager
def tracing(as_captured: bool) -> Iterator[None]:
    """Say within this context that a pass is being traced.

    With `as_captured`, models that ask torch hear that a CUDA graph is being captured. Some then
    leave out decisions on values, such as checks of their inputs.
    """
    token = _tracing.set(True)
    try:
        if as_captured:
            with patch.object(torch.cuda, "is_current_stream_capturing", return_value=True):
                yield
        else:
            yield
    finally:
        _tracing.reset(token)


@contextmanager
def captured_by(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture what runs within this context; errors are those of torch, without its warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", EMPTY)
        with torch.cuda.graph(graph, stream=stream):
            yield
