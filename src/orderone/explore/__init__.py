"""The explorer: a local web page whose sliders change the numbers that the library computes.

Names load when they are first used. The processes that compute need neither the server nor the
packages that draw its pages, torch among them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from orderone.core.lazy import lazy_names

if TYPE_CHECKING:
    from orderone.explore.server import HOST as HOST
    from orderone.explore.server import Explorer as Explorer

__all__ = ["HOST", "Explorer"]

__getattr__: Callable[[str], object] = lazy_names(__name__, dict.fromkeys(__all__, "server"))
