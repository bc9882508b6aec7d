"""Parameterizations as data: `get` one by name, make a `custom` one, derive one `from_alignment`,
list the `names`."""

from orderone.rules.parameterizations import (
    assumed_alignment,
    custom,
    from_alignment,
    get,
    names,
)

__all__ = ["assumed_alignment", "custom", "from_alignment", "get", "names"]
