"""Tables of the papers, one file each: what is claimed, what is predicted, what is measured."""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s0_table1 import TABLE1
from orderone.gallery.s0_table2 import TABLE2
from orderone.gallery.s0_table3 import TABLE3

EXPERIMENTS = {experiment.name: experiment for experiment in (TABLE1, TABLE2, TABLE3)}

__all__ = ["EXPERIMENTS", "Experiment"]
