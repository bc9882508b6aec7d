"""Train many models of the same shape in one program, with the losses of stand-alone runs."""

from orderone.sweeping.stacked.run import run_stacked
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.graph import CapturedStep
from orderone.training.stacked.stack import Stack

__all__ = ["CapturedStep", "NotStackable", "Stack", "run_stacked"]
