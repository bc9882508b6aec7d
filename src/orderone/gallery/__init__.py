"""Tables and figures of the papers as experiments: what is claimed, what is measured, and whether
it holds.

One folder per paper (`s0` to `s3`) and one file per experiment. A new experiment is a file that
defines `EXPERIMENT` and a line in its paper's `__init__.py`.
"""

from orderone.gallery import s0, s1, s2, s3
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

PAPERS = (s0, s1, s2, s3)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for paper in PAPERS for experiment in paper.EXPERIMENTS
}

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
