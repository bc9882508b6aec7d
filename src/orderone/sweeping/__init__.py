"""Many trainings, and what they say together: sweeps of small models, and whether their best
settings carry over."""

from orderone.sweeping.result import Interrupted, Sweep
from orderone.sweeping.schedule import schedule
from orderone.sweeping.space import log_grid
from orderone.sweeping.stacked import NotStackable, Stack
from orderone.sweeping.sweep import sweep
from orderone.sweeping.train import train
from orderone.sweeping.transfer import Transfer

__all__ = [
    "Interrupted",
    "NotStackable",
    "Stack",
    "Sweep",
    "Transfer",
    "log_grid",
    "schedule",
    "sweep",
    "train",
]
