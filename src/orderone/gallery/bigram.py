"""The old name of `orderone.gallery.s0.bigram`."""

from collections.abc import Callable

from orderone.core.renamed import forward

__getattr__: Callable[[str], object] = forward(__name__, "orderone.gallery.s0.bigram")
