"""Trace of a forward pass: how the forward code uses every parameter, operation by operation.

facts       result types of a trace
graph       tensors, operations and steps of a recorded pass, and the facts read off them
operations  tables of aten operations by name
packed      rows of packed projections that are queries, and rows that are keys
recorder    `trace`: runs the model and records the steps
"""

from orderone.observe.trace.facts import Branch, Constant, Scores, Trace, Use
from orderone.observe.trace.recorder import call_with, trace, undisturbed

__all__ = ["Branch", "Constant", "Scores", "Trace", "Use", "call_with", "trace", "undisturbed"]
