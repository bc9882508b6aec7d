"""Axes of scale as data: what changes when a model or its training grows. One file each.

    width.py, depth.py     ratios of the dimensions of each tensor, which `planning` finds
    batch.py, tokens.py    ratios of the training: `horizon` names the rule for both
    experts.py, rank.py, repetition.py
                           numbers of experts, ranks of adapters, queries that share a key: ratios
                           which `planning` finds
    decay.py               how weight decay follows

`get` returns an axis that an installed package provides (`rules.plugins`).
"""

from collections.abc import Mapping

from orderone.core.errors import one_of
from orderone.core.inputs import Name
from orderone.rules.axes.axis import Axis, Memory, ScaledTensor
from orderone.rules.axes.batch import POWER_BATCH, SDE_BATCH
from orderone.rules.axes.decay import (
    DECAY,
    INDEPENDENT,
    PROPORTIONAL,
    SQRT,
    TIMESCALE,
    decay_factor,
    shrinkage,
)
from orderone.rules.axes.depth import DEPTH_RULES, depth_factors
from orderone.rules.axes.experts import EXPERT_RULES, ExpertGrowth, expert_factors
from orderone.rules.axes.rank import RANK_RULES, rank_factors
from orderone.rules.axes.repetition import REPETITION_RULES, repetition_factors
from orderone.rules.axes.tokens import POWER_TOKENS, SDE_TOKENS
from orderone.rules.axes.width import paper_multiplier, tied_multiplier, width_factors, width_of
from orderone.rules.factors import Factors, Growth

# rules for batch size and training tokens, by name
HORIZONS: Mapping[str, tuple[Axis, Axis]] = {
    "sde": (SDE_BATCH, SDE_TOKENS),
    "power": (POWER_BATCH, POWER_TOKENS),
}


def horizon(name: Name) -> tuple[Axis, Axis]:
    """Return the axes batch and tokens of a rule: "sde" or "power"."""
    return HORIZONS[one_of(name, HORIZONS, "horizon")]


__all__ = [
    "DECAY",
    "DEPTH_RULES",
    "EXPERT_RULES",
    "HORIZONS",
    "INDEPENDENT",
    "POWER_BATCH",
    "POWER_TOKENS",
    "PROPORTIONAL",
    "RANK_RULES",
    "REPETITION_RULES",
    "SDE_BATCH",
    "SDE_TOKENS",
    "SQRT",
    "TIMESCALE",
    "Axis",
    "ExpertGrowth",
    "Factors",
    "Growth",
    "Memory",
    "ScaledTensor",
    "decay_factor",
    "depth_factors",
    "expert_factors",
    "horizon",
    "paper_multiplier",
    "rank_factors",
    "repetition_factors",
    "shrinkage",
    "tied_multiplier",
    "width_factors",
    "width_of",
]
