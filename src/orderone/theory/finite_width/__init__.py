"""Networks of finite width and depth at initialization: corrections of order 1/n, and Jacobians.

four_point(...)         variance of a neuron and its fourth cumulant, layer by layer
jacobian_spectrum(...)  singular values of the Jacobian from input to output
"""

from orderone.theory.finite_width.four_point import FourPoint, four_point
from orderone.theory.finite_width.jacobian import JacobianSpectrum, jacobian_spectrum

__all__ = ["FourPoint", "JacobianSpectrum", "four_point", "jacobian_spectrum"]
