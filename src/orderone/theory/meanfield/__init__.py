"""Mean field theory of deep dropout networks: lengths, correlations, phases, gradients.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks: digging up gradient
backpropagation deeply".
"""

from orderone.theory.meanfield.critical import (
    NotCriticalError,
    critical_bias_var,
    critical_keep,
    critical_weight_var,
    edge_of_chaos,
)
from orderone.theory.meanfield.diagram import PhaseDiagram, phase_diagram
from orderone.theory.meanfield.fixed_point import FixedPoint
from orderone.theory.meanfield.gradients import (
    GradientMetrics,
    GradientVariances,
    linear_gradient_metrics,
    linear_gradient_variances,
    linear_noise_level,
)
from orderone.theory.meanfield.laws import GradientLaw, crossover_depth, gradient_law
from orderone.theory.meanfield.mean_field import MeanField
from orderone.theory.meanfield.trajectory import Trajectory

__all__ = [
    "FixedPoint",
    "GradientLaw",
    "GradientMetrics",
    "GradientVariances",
    "MeanField",
    "NotCriticalError",
    "PhaseDiagram",
    "Trajectory",
    "critical_bias_var",
    "critical_keep",
    "critical_weight_var",
    "crossover_depth",
    "edge_of_chaos",
    "gradient_law",
    "linear_gradient_metrics",
    "linear_gradient_variances",
    "linear_noise_level",
    "phase_diagram",
]
