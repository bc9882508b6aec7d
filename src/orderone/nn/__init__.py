"""Models of the papers, and networks built from the layers of `theory.kernels`."""

from orderone.nn.bigram import Bigram, learning_rates
from orderone.nn.from_layers import from_layers, to_module
from orderone.nn.shaped import ShapedActivation, ShapedReLU, TransformedActivation
from orderone.nn.shaping import Shaping, shape_activations
from orderone.nn.simulated import SimulatedKernels, simulate_kernels
from orderone.nn.transformer import (
    GPT,
    EncoderDecoder,
    VisionTransformer,
    bart_large,
    gpt2_small,
    r2c2,
    vit_b16,
)

__all__ = [
    "GPT",
    "Bigram",
    "EncoderDecoder",
    "ShapedActivation",
    "ShapedReLU",
    "Shaping",
    "SimulatedKernels",
    "TransformedActivation",
    "VisionTransformer",
    "bart_large",
    "from_layers",
    "gpt2_small",
    "learning_rates",
    "r2c2",
    "shape_activations",
    "simulate_kernels",
    "to_module",
    "vit_b16",
]
