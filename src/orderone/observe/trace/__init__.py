"""Trace of a forward pass: how the forward code uses every parameter, operation by operation.

recorder         `trace`: runs the model and records the steps
operations       tables of aten operations by name
steps            tensors, operations and steps of a recorded pass
parameter_views  axes of parameters behind views and copies
graph            facts read off the steps
packed           rows of packed projections that are queries, and rows that are keys
facts            result types of a trace
"""

from orderone.observe.trace.facts import Branch, Constant, Scores, Trace, Use
from orderone.observe.trace.recorder import call_with, trace, undisturbed

__all__ = ["Branch", "Constant", "Scores", "Trace", "Use", "call_with", "trace", "undisturbed"]
