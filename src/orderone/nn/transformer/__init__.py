"""Transformers of Part II of S2 (Dinan, Yaida & Zhang 2023)."""

from orderone.nn.transformer.encoder_decoder import EncoderDecoder
from orderone.nn.transformer.gpt import GPT
from orderone.nn.transformer.sizes import bart_large, gpt2_small, r2c2, vit_b16
from orderone.nn.transformer.vision import VisionTransformer

__all__ = [
    "GPT",
    "EncoderDecoder",
    "VisionTransformer",
    "bart_large",
    "gpt2_small",
    "r2c2",
    "vit_b16",
]
