"""Activations and their Gaussian averages: `get("tanh")`, `names()`. One file for each family."""

from orderone.theory.activations.base import Activation, AtLength
from orderone.theory.activations.piecewise_linear import PiecewiseLinear
from orderone.theory.activations.registry import get, names

__all__ = ["Activation", "AtLength", "PiecewiseLinear", "get", "names"]
