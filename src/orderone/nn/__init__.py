"""The papers' models, and networks from descriptions whose kernels theory computes."""

from orderone.nn.bigram import Bigram, learning_rates
from orderone.nn.from_layers import from_layers
from orderone.nn.simulated import SimulatedKernels, simulate_kernels
from orderone.nn.transformer import GPT, EncoderDecoder, VisionTransformer, bart_large, gpt2_small, r2c2, vit_b16

__all__ = [
    "GPT",
    "Bigram",
    "EncoderDecoder",
    "SimulatedKernels",
    "VisionTransformer",
    "bart_large",
    "from_layers",
    "gpt2_small",
    "learning_rates",
    "r2c2",
    "simulate_kernels",
    "vit_b16",
]
