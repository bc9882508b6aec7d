"""Tables and figures of the papers as experiments: what is claimed, what is measured, and whether
it holds.

One folder per paper (`s0` to `s3`) and one file per experiment. A new experiment is a file that
defines `EXPERIMENT` and a line in its paper's `__init__.py`.
"""

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
from orderone.gallery.s0 import EXPERIMENTS as S0
from orderone.gallery.s1 import EXPERIMENTS as S1
from orderone.gallery.s2 import EXPERIMENTS as S2
from orderone.gallery.s3 import EXPERIMENTS as S3

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*S0, *S1, *S2, *S3)
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
