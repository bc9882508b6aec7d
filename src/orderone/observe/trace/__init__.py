"""What the forward code does with every parameter: one forward pass, watched operation by
operation.

    facts       result types of a trace
    values      tensors, operations and steps as they are recorded
    recorder    writes down the steps of a forward pass
    graph       `trace`: runs the model, and reads facts off the recorded steps
"""

from orderone.observe.trace.facts import Branch, Constant, Scores, Trace, Use
from orderone.observe.trace.graph import call_with, trace, undisturbed

__all__ = ["Branch", "Constant", "Scores", "Trace", "Use", "call_with", "trace", "undisturbed"]
