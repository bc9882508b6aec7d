"""Experiments of paper S1, "Mean field theory for deep dropout networks"."""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s1 import (
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    signals,
    table1,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    figure1.EXPERIMENT,
    table1.EXPERIMENT,
    figure2.EXPERIMENT,
    figure3.EXPERIMENT,
    figure4.EXPERIMENT,
    signals.EXPERIMENT,
    figure5.EXPERIMENT,
    figure6.EXPERIMENT,
    figure7.EXPERIMENT,
)

__all__ = ["EXPERIMENTS"]
