"""Networks of finite width and depth at initialization: corrections of order 1/n, and Jacobians.

four_point(...)             variance of a neuron and its fourth cumulant, layer by layer
four_point_kernel(...)      the same for several inputs
normalized_variance(...)    layer norms over n neurons; norm_moment, normalized_covariance
jacobian_spectrum(...)      singular values of the Jacobian from input to output
"""

from orderone.theory.finite_width.four_point import FourPoint, four_point
from orderone.theory.finite_width.jacobian import JacobianSpectrum, jacobian_spectrum
from orderone.theory.finite_width.norms import (
    NormalizedVariance,
    norm_moment,
    normalized_covariance,
    normalized_variance,
)
from orderone.theory.finite_width.several_inputs import FourPointKernel, four_point_kernel

__all__ = [
    "FourPoint",
    "FourPointKernel",
    "JacobianSpectrum",
    "NormalizedVariance",
    "four_point",
    "four_point_kernel",
    "jacobian_spectrum",
    "norm_moment",
    "normalized_covariance",
    "normalized_variance",
]
