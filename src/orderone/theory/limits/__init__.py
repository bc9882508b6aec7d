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
from orderone.theory.limits.expansions import (
    ChainCoefficients,
    ExpandedStep,
    chain_coefficients,
    expanded_step,
    infinite_width_q_ode,
)
from orderone.theory.limits.metric import diffusion, metric
from orderone.theory.limits.odes import correlation_ode, covariance_ode, resnet_ode
from orderone.theory.limits.relu_moments import K0, K1, K2, K31, nu
from orderone.theory.limits.shaped import ShapedReLU, ShapedSmooth
from orderone.theory.limits.shaped_moments import (
    FourthMoment,
    covariance_drift,
    fourth_moment,
    product_covariance,
    relu_moment,
    shaped_correlation,
    shaped_moment,
    shaped_normalizer,
    square_variance,
)
from orderone.theory.limits.unshaped import UnshapedCorrelationSDE

__all__ = [
    "K0",
    "K1",
    "K2",
    "K31",
    "Q_INFINITY",
    "ChainCoefficients",
    "CovarianceSDE",
    "DepthLaw",
    "DepthReport",
    "Distance",
    "ExpandedStep",
    "FourthMoment",
    "Paths",
    "ShapedReLU",
    "ShapedSmooth",
    "UnshapedCorrelationSDE",
    "chain_coefficients",
    "correlation_chain",
    "correlation_mean",
    "correlation_ode",
    "covariance_drift",
    "covariance_ode",
    "depth_law",
    "depth_report",
    "diffusion",
    "distance",
    "energy",
    "expanded_step",
    "fourth_moment",
    "infinite_width_q",
    "infinite_width_q_ode",
    "ks",
    "metric",
    "mu_r",
    "nu",
    "product_covariance",
    "relu_moment",
    "resnet_ode",
    "shaped_correlation",
    "shaped_moment",
    "shaped_normalizer",
    "sigma_r2",
    "square_variance",
    "wasserstein",
]
