"""Example of a package for orderone: a rule, an axis of scale, and a composition of both.

**Rule.** muP whose readout starts smaller by another n^-1/2, the middle between its usual start and
a start at zero. Learning rates are derived.

**Axis.** The length of sequences. A batch of constantly many sequences of m times the length has m
times as many tokens, so that gradients have m times less variance: the factors are those of a batch
that is m times as large.
"""

from orderone import rules
from orderone.rules import Axis, Factors, RuleTable, ScaledTensor
from orderone.rules.axes import SDE_BATCH

QUIET_READOUT = RuleTable(
    "quiet-readout",
    a=("-1/2", 0, "1/2", 0),
    b=("1/2", "1/2", 1, 0),
)


def context_factors(tensor: ScaledTensor) -> Factors:
    """Return the factors for sequences that are `tensor.ratio` times as long."""
    return SDE_BATCH.factors(tensor)


CONTEXT = Axis(
    "context",
    context_factors,
    formula="as a batch that is m times as large",
    source="example",
)

LONG_CONTEXT = rules.compose("mup", CONTEXT, depth="completep", name="long-context")
