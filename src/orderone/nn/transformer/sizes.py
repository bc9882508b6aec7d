"""The sizes of S2 Part II, by name. Everything can be changed: `vit_b16(classes=10)`.

    vit_b16       86,444,008 parameters      S2 II.1.B
    bart_large   404,845,568 parameters      S2 II.2.B
    r2c2       2,688,739,328 parameters      S2 II.2.B

Under `torch.device("meta")` they take no memory.
"""

from typing import Any

from orderone.nn.transformer.encoder_decoder import EncoderDecoder
from orderone.nn.transformer.gpt import GPT
from orderone.nn.transformer.vision import VisionTransformer

PADDING = 1  # of the GPT-2 vocabulary with BART's four special tokens


def vit_b16(**changes: Any) -> VisionTransformer:
    """ViT-B/16 without biases but the head's, mean pooling, norms without gains: 86 M
    parameters."""
    sizes: dict[str, Any] = {"image": 224, "patch": 16, "width": 768, "heads": 12, "depth": 12}
    return VisionTransformer(**sizes | changes)


def bart_large(**changes: Any) -> EncoderDecoder:
    """BART-large with the norm first, without biases and gains: 405 M parameters."""
    sizes: dict[str, Any] = {
        "vocab": 50265,
        "length": 514,
        "width": 1024,
        "heads": 16,
        "depth": 12,
        "padding": PADDING,
    }
    return EncoderDecoder(**sizes | changes)


def r2c2(**changes: Any) -> EncoderDecoder:
    """R2C2 without biases and gains: 2.7 B parameters."""
    sizes: dict[str, Any] = {
        "vocab": 50265,
        "length": 514,
        "width": 2048,
        "heads": 32,
        "depth": 22,
        "padding": PADDING,
    }
    return EncoderDecoder(**sizes | changes)


def gpt2_small(**changes: Any) -> GPT:
    """The sizes of GPT-2 (124 M with biases and gains), here without them."""
    sizes: dict[str, Any] = {"vocab": 50257, "length": 1024, "width": 768, "heads": 12, "depth": 12}
    return GPT(**sizes | changes)
