"""Models with the sizes of S2 Part II. Every argument can be changed: `vit_b16(classes=10)`.

    vit_b16       86,444,008 parameters      S2 II.1.B
    bart_large   404,845,568 parameters      S2 II.2.B
    r2c2       2,688,739,328 parameters      S2 II.2.B

Under `torch.device("meta")` the models take no memory.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from typing import TypedDict, Unpack

from orderone.core.inputs import Count, Name, Number
from orderone.nn.inputs import Scales, Switch
from orderone.nn.transformer.encoder_decoder import EncoderDecoder
from orderone.nn.transformer.gpt import GPT
from orderone.nn.transformer.vision import VisionTransformer

PADDING = 1  # padding token of the GPT-2 vocabulary with BART's four special tokens


class TransformerOptions(TypedDict, total=False):
    """Arguments that all models share."""

    width: Count
    heads: Count
    depth: Count
    mlp: Number
    activation: Name
    bias: Switch
    affine: Switch
    eps: Number
    dropout: Number
    checkpoint: Switch
    C: Scales


class VisionOptions(TransformerOptions, total=False):
    """Arguments of `VisionTransformer`."""

    image: Count
    patch: Count
    classes: Count
    channels: Count
    pooling: Name
    head_bias: Switch


class EncoderDecoderOptions(TransformerOptions, total=False):
    """Arguments of `EncoderDecoder`."""

    vocab: Count
    length: Count
    padding: Count | None
    rescale: Number


class GPTOptions(TransformerOptions, total=False):
    """Arguments of `GPT`."""

    vocab: Count
    length: Count
    tied: Switch
    rescale: Number


VIT_B16: VisionOptions = {"image": 224, "patch": 16, "width": 768, "heads": 12, "depth": 12}
BART_LARGE: EncoderDecoderOptions = {
    "vocab": 50265,
    "length": 514,
    "width": 1024,
    "heads": 16,
    "depth": 12,
    "padding": PADDING,
}
R2C2: EncoderDecoderOptions = {
    "vocab": 50265,
    "length": 514,
    "width": 2048,
    "heads": 32,
    "depth": 22,
    "padding": PADDING,
}
GPT2_SMALL: GPTOptions = {"vocab": 50257, "length": 1024, "width": 768, "heads": 12, "depth": 12}


def vit_b16(**changes: Unpack[VisionOptions]) -> VisionTransformer:
    """Build ViT-B/16 with 86 M parameters.

    Only the head has a bias; pooling takes the mean over tokens; norms have no gains.
    """
    return VisionTransformer(**(VIT_B16 | changes))


def bart_large(**changes: Unpack[EncoderDecoderOptions]) -> EncoderDecoder:
    """Build pre-norm BART-large without biases and gains: 405 M parameters."""
    return EncoderDecoder(**(BART_LARGE | changes))


def r2c2(**changes: Unpack[EncoderDecoderOptions]) -> EncoderDecoder:
    """Build R2C2 without biases and gains: 2.7 B parameters."""
    return EncoderDecoder(**(R2C2 | changes))


def gpt2_small(**changes: Unpack[GPTOptions]) -> GPT:
    """Build a GPT with the sizes of GPT-2 small, without its biases and gains: 124 M parameters."""
    return GPT(**(GPT2_SMALL | changes))
