"""Experiments of paper S2, "Effective Theory of Transformers at Initialization"."""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s2 import (
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    kernels,
    parameters,
    strategies,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    figure1.EXPERIMENT,
    figure2.EXPERIMENT,
    figure3.EXPERIMENT,
    figure4.EXPERIMENT,
    figure5.EXPERIMENT,
    kernels.EXPERIMENT,
    parameters.EXPERIMENT,
    strategies.EXPERIMENT,
)

__all__ = ["EXPERIMENTS"]
