"""What can be chosen: names that the library knows."""

from typing import Any

from orderone import rules
from orderone.explore.query import Query
from orderone.theory import activations
from orderone.theory.exponents import GAUGES, OPTIMIZERS
from orderone.theory.exponents.updates import PRESETS
from orderone.theory.limits.shaped import SMOOTH

BARE = ("shaped-relu", "polynomial")  # families that mean nothing without numbers


def choices(query: Query) -> dict[str, Any]:
    query.done()
    return {
        "activation": [name for name in activations.names() if name not in BARE],
        "smooth": list(SMOOTH),
        "rule": [
            {"name": name, "alignment": rules.assumed_alignment(name)} for name in rules.names()
        ],
        "optimizer": list(OPTIMIZERS),
        "alignment": list(PRESETS),
        "gauge": list(GAUGES),
    }
