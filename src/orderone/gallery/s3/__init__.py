"""Experiments of paper S3.

"Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s3 import convergence, figure1, resnet, shaped

EXPERIMENTS: tuple[Experiment, ...] = (
    figure1.EXPERIMENT,
    convergence.EXPERIMENT,
    resnet.EXPERIMENT,
    shaped.EXPERIMENT,
)

__all__ = ["EXPERIMENTS"]
