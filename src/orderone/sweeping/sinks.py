"""The old name of `orderone.training.sinks`."""

from collections.abc import Callable

from orderone.core.renamed import forward

__getattr__: Callable[[str], object] = forward(__name__, "orderone.training.sinks")
