"""Effective theory of Transformers at initialization (S2): kernels and tangent kernels, block by block.

t = theory.Transformer(blocks="AMAM", activation="gelu")
t.kernels(G0), t.output_kernel(G0), t.ntk(G0), t.predict(G0).shares
"""

from orderone.theory.transformer.groups import GROUPS, relative_rates
from orderone.theory.transformer.model import Transformer
from orderone.theory.transformer.passing import Memory
from orderone.theory.transformer.prediction import Prediction
from orderone.theory.transformer.stems import patches, words

__all__ = ["GROUPS", "Memory", "Prediction", "Transformer", "patches", "relative_rates", "words"]
