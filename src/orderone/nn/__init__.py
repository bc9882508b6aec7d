"""The papers' models, and networks from descriptions whose kernels theory computes."""

from orderone.nn.bigram import Bigram, learning_rates
from orderone.nn.from_layers import from_layers, to_module
from orderone.nn.shaped import ShapedActivation, ShapedReLU
from orderone.nn.shaping import Shaping, shape_activations
from orderone.nn.simulated import SimulatedKernels, simulate_kernels

__all__ = [
    "Bigram",
    "ShapedActivation",
    "ShapedReLU",
    "Shaping",
    "SimulatedKernels",
    "from_layers",
    "learning_rates",
    "shape_activations",
    "simulate_kernels",
    "to_module",
]
