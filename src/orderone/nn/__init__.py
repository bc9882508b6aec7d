"""The papers' models."""

from orderone.nn.bigram import Bigram, learning_rates
from orderone.nn.shaped import ShapedActivation, ShapedReLU
from orderone.nn.shaping import Shaping, shape_activations

__all__ = ["Bigram", "ShapedActivation", "ShapedReLU", "Shaping", "learning_rates", "shape_activations"]
