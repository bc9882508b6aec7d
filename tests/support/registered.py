"""Registered optimizer classes, for the time of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

from orderone.optimizers import registry


@contextmanager
def forgotten() -> Iterator[None]:
    """Forget at the end what was registered inside."""
    before = dict(registry._REGISTERED), dict(registry._BY_NAME)
    try:
        yield
    finally:
        for table, content in zip((registry._REGISTERED, registry._BY_NAME), before, strict=True):
            table.clear()
            table.update(content)  # type: ignore[arg-type]
