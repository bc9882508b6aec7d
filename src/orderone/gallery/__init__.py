"""Tables and figures of the papers, one file each: what is claimed, what is measured, and whether
it holds.

A file `s1_figure7.py` that defines EXPERIMENT is all that a new entry needs.
"""

import re
from importlib import import_module
from pathlib import Path

from orderone.gallery.experiment import (
    SCALES,
    VERDICTS,
    Experiment,
    Finding,
    Grid,
    Picture,
    verdict,
)
from orderone.gallery.run import Reproduced, load, reproduce

_FILES = sorted(path.stem for path in Path(__file__).parent.glob("s[0-3]_*.py"))
_FOUND = [import_module(f"orderone.gallery.{name}").EXPERIMENT for name in _FILES]


def _order(experiment: Experiment) -> tuple:
    """By paper, then tables and figures by their numbers, then what has none."""
    number = re.search(r"(\d+)$", experiment.name[3:])
    return experiment.paper, number is None, int(number[1]) if number else 0, experiment.name


EXPERIMENTS = {experiment.name: experiment for experiment in sorted(_FOUND, key=_order)}

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "VERDICTS",
    "Experiment",
    "Finding",
    "Grid",
    "Picture",
    "Reproduced",
    "load",
    "reproduce",
    "verdict",
]
