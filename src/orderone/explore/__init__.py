"""The explorer: a page on this machine whose numbers are computed by the library while sliders
move."""

from orderone.explore.server import HOST, Explorer

__all__ = ["HOST", "Explorer"]
