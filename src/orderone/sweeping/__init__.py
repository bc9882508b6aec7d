"""Sweeps of small models, and tests whether their best learning rate transfers to large ones."""

from orderone.sweeping.combinations import Transfers
from orderone.sweeping.multipliers import multipliers
from orderone.sweeping.options import Execution, Search, Training
from orderone.sweeping.result import ClusterLost, Interrupted, Sweep
from orderone.sweeping.space import log_grid
from orderone.sweeping.stacked import NotStackable, Stack
from orderone.sweeping.sweep import sweep
from orderone.sweeping.transfer import Transfer
from orderone.training.schedule import schedule
from orderone.training.train import train

__all__ = [
    "ClusterLost",
    "Execution",
    "Interrupted",
    "NotStackable",
    "Search",
    "Stack",
    "Sweep",
    "Training",
    "Transfer",
    "Transfers",
    "log_grid",
    "multipliers",
    "schedule",
    "sweep",
    "train",
]
