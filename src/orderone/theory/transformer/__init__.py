"""Effective theory of Transformers at initialization: kernels and tangent kernels of each block.

t = theory.Transformer(blocks="AMAM", activation="gelu")
t.kernels(G0), t.output_kernel(G0), t.ntk(G0), t.predict(G0).shares
"""

from orderone.theory.transformer.few_heads import FewHeads
from orderone.theory.transformer.groups import GROUPS, relative_rates
from orderone.theory.transformer.layer import Attention, HeadsAttention
from orderone.theory.transformer.model import Transformer
from orderone.theory.transformer.passing import Memory
from orderone.theory.transformer.prediction import Prediction
from orderone.theory.transformer.scores import (
    AttentionProducts,
    attention_products,
    score_covariance,
    score_moment,
)
from orderone.theory.transformer.stems import patches, words
from orderone.theory.transformer.tied import TiedContact, TiedTerms, tied_terms
from orderone.theory.transformer.tied_expansion import TiedExpansion, tied_expansion

__all__ = [
    "GROUPS",
    "Attention",
    "AttentionProducts",
    "FewHeads",
    "HeadsAttention",
    "Memory",
    "Prediction",
    "TiedContact",
    "TiedExpansion",
    "TiedTerms",
    "Transformer",
    "attention_products",
    "patches",
    "relative_rates",
    "score_covariance",
    "score_moment",
    "tied_expansion",
    "tied_terms",
    "words",
]
