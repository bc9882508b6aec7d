"""The explorer: a local web page whose sliders change the numbers that the library computes."""

from orderone.explore.server import HOST, Explorer

__all__ = ["HOST", "Explorer"]
