"""The papers' models."""

from orderone.nn.bigram import Bigram, learning_rates

__all__ = ["Bigram", "learning_rates"]
