"""The papers' models."""

from orderone.nn.bigram import Bigram

__all__ = ["Bigram"]
