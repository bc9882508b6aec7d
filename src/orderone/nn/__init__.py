"""The papers' models, and networks from descriptions whose kernels theory computes."""

from orderone.nn.bigram import Bigram, learning_rates
from orderone.nn.from_layers import from_layers, to_module
from orderone.nn.simulated import SimulatedKernels, simulate_kernels

__all__ = ["Bigram", "SimulatedKernels", "from_layers", "learning_rates", "simulate_kernels", "to_module"]
