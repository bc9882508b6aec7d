"""Limits of infinite depth and width: differential equations of covariances and correlations.

S3 is Li & Nica, *Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks*.
"""

from orderone.theory.limits.chain import (
    Q_INFINITY,
    correlation_chain,
    infinite_width_q,
    mu_r,
    sigma_r2,
)
from orderone.theory.limits.correlation_law import correlation_mean
from orderone.theory.limits.covariance_sde import CovarianceSDE, Paths
from orderone.theory.limits.depth_law import DepthLaw, depth_law
from orderone.theory.limits.depth_report import DepthReport, depth_report
from orderone.theory.limits.distances import Distance, distance, energy, ks, wasserstein
from orderone.theory.limits.metric import diffusion, metric
from orderone.theory.limits.odes import correlation_ode, covariance_ode, resnet_ode
from orderone.theory.limits.relu_moments import K0, K1, K2, K31, nu
from orderone.theory.limits.shaped import ShapedReLU, ShapedSmooth
from orderone.theory.limits.unshaped import UnshapedCorrelationSDE

__all__ = [
    "K0",
    "K1",
    "K2",
    "K31",
    "Q_INFINITY",
    "CovarianceSDE",
    "DepthLaw",
    "DepthReport",
    "Distance",
    "Paths",
    "ShapedReLU",
    "ShapedSmooth",
    "UnshapedCorrelationSDE",
    "correlation_chain",
    "correlation_mean",
    "correlation_ode",
    "covariance_ode",
    "depth_law",
    "depth_report",
    "diffusion",
    "distance",
    "energy",
    "infinite_width_q",
    "ks",
    "metric",
    "mu_r",
    "nu",
    "resnet_ode",
    "sigma_r2",
    "wasserstein",
]
