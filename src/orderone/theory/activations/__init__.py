"""Activations and their Gaussian averages. One file a family; `get("tanh")`, `names()`."""

from orderone.theory.activations.base import Activation, AtLength
from orderone.theory.activations.piecewise_linear import PiecewiseLinear
from orderone.theory.activations.registry import get, names

__all__ = ["Activation", "AtLength", "PiecewiseLinear", "get", "names"]
