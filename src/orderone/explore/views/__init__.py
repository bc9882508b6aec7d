"""The views of the page: one file each, with a function from a query to numbers and words."""

from collections.abc import Callable, Mapping

from orderone.explore.query import Query
from orderone.explore.views.choices import choices
from orderone.explore.views.depth import depth
from orderone.explore.views.diagram import diagram
from orderone.explore.views.infinite_width import infinite_width
from orderone.explore.views.network import network
from orderone.explore.views.rule import rule

VIEWS: Mapping[str, Callable[[Query], dict[str, object]]] = {
    "choices": choices,
    "network": network,
    "diagram": diagram,
    "rule": rule,
    "depth": depth,
    "model": infinite_width,
}

__all__ = ["VIEWS"]
