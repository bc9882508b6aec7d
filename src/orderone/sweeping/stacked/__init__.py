"""Many models of one shape, trained in one program: each member's losses are those of its
stand-alone run."""

from orderone.sweeping.stacked.run import run_stacked
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.graph import CapturedStep
from orderone.training.stacked.stack import Stack

__all__ = ["CapturedStep", "NotStackable", "Stack", "run_stacked"]
