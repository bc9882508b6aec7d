"""Experiments of paper S0, "Scale-Invariant Parameterizations"."""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s0 import alignment, equivalence, logits, table1, table2, table3

EXPERIMENTS: tuple[Experiment, ...] = (
    table1.EXPERIMENT,
    table2.EXPERIMENT,
    table3.EXPERIMENT,
    alignment.EXPERIMENT,
    equivalence.EXPERIMENT,
    logits.EXPERIMENT,
)

__all__ = ["EXPERIMENTS"]
