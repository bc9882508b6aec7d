"""The names that the page offers."""

from orderone import rules
from orderone.explore.architectures import ARCHITECTURES
from orderone.explore.query import Query
from orderone.theory import activations
from orderone.theory.exponents import GAUGES, OPTIMIZERS
from orderone.theory.exponents.updates import PRESETS
from orderone.theory.limits.shaped import SMOOTH

BARE = ("shaped-relu", "polynomial")  # families that need parameters, as in "polynomial(0, 1)"


def choices(query: Query) -> dict[str, object]:
    """Return names of activations, rules, optimizers, alignments, gauges and models."""
    query.done()
    rule_choices = []
    for name in rules.names():
        rule_choices.append({"name": name, "alignment": rules.assumed_alignment(name)})
    return {
        "activation": [name for name in activations.names() if name not in BARE],
        "smooth": list(SMOOTH),
        "rule": rule_choices,
        "optimizer": list(OPTIMIZERS),
        "alignment": list(PRESETS),
        "gauge": list(GAUGES),
        "architecture": list(ARCHITECTURES),
    }
