"""Tables and figures of the papers as experiments: claims, measurements and verdicts.

    s0   Scale-Invariant Parameterizations
    s1   Mean field theory for deep dropout networks
    s2   Effective Theory of Transformers at Initialization
    s3   Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks

One folder per paper and one file per experiment. To add an experiment, write a file that defines
`EXPERIMENT`, and add a line to the `__init__.py` of its paper.
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
