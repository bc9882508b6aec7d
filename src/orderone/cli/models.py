"""Small models of `orderone check` and `orderone sweep`, built at any width and depth.

The models are unmodified ones of Hugging Face, and an MLP. A head has 16 channels; wider models
have more heads. The MLP of a block is four times as wide as the model. There is no dropout. Tokens
are bytes of the Python standard library; images are the digits of scikit-learn.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orderone.core.errors import InputError

if TYPE_CHECKING:  # torch is heavy, and `orderone --help` does not need it
    from torch import Tensor, nn

HEAD = 16
LONGEST = 256  # bytes of a text: GPT-2 has an embedding for each position
VOCABULARY = 256
CLASSES = 10
IMAGE = 8
PATCH = 2
LAYERS = 2  # the smallest number of layers with a hidden-to-hidden matrix


@dataclass(frozen=True)
class Model:
    """A function that builds a model, with data for it."""

    build: Callable[[int, int], "nn.Module"]  # arguments: width, depth
    batch: Callable[[int, int, int], object]  # arguments: seed, batch size, length of a text
    about: str
    multiple: int = HEAD  # widths must be multiples of this

    @property
    def reads_text(self) -> bool:
        """Return whether the model is trained on text, which has a length."""
        return self.batch is _text


def gpt2(width: int, layers: int = LAYERS, *, vocab: int = VOCABULARY) -> "nn.Module":
    """Build GPT-2 from Hugging Face."""
    hf = _transformers()
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=vocab,
            n_positions=LONGEST,
            n_embd=width,
            n_layer=layers,
            n_head=width // HEAD,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def llama(width: int, layers: int = LAYERS, *, vocab: int = VOCABULARY) -> "nn.Module":
    """Build Llama from Hugging Face."""
    hf = _transformers()
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD,
            num_key_value_heads=width // HEAD,
            head_dim=HEAD,
            use_cache=False,
        )
    )


def vit(
    width: int,
    layers: int = LAYERS,
    *,
    image: int = IMAGE,
    patch: int = PATCH,
    channels: int = 1,
    classes: int = CLASSES,
) -> "nn.Module":
    """Build the Vision Transformer from Hugging Face."""
    hf = _transformers()
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD,
            image_size=image,
            patch_size=patch,
            num_channels=channels,
            num_labels=classes,
        )
    )


def mlp(
    width: int, layers: int = LAYERS, *, inputs: int = IMAGE * IMAGE, classes: int = CLASSES
) -> "nn.Module":
    """Build an MLP with `layers` width x width matrices between the first and the last matrix."""
    from torch import nn

    network = nn.Sequential()
    network.add_module("flatten", nn.Flatten())
    network.add_module("first", nn.Linear(inputs, width))
    network.add_module("relu", nn.ReLU())
    hidden = nn.Sequential()
    for _ in range(layers):
        linear = nn.Linear(width, width)
        hidden.append(nn.Sequential(OrderedDict({"linear": linear, "relu": nn.ReLU()})))
    network.add_module("hidden", hidden)
    network.add_module("last", nn.Linear(width, classes))
    return network


def _text(seed: int, batch: int, length: int) -> dict[str, "Tensor"]:
    from orderone.data import text_batch

    ids = text_batch(seed, batch, length)
    return {"input_ids": ids, "labels": ids}


def _images(seed: int, batch: int, length: int) -> tuple["Tensor", "Tensor"]:
    from orderone.data import digits_batch

    return digits_batch(seed, batch)


def _named_images(seed: int, batch: int, length: int) -> dict[str, "Tensor"]:
    images, labels = _images(seed, batch, length)
    return {"pixel_values": images, "labels": labels}


def _transformers() -> Any:  # its classes are looked up by name
    try:
        import transformers
    except ImportError as error:
        message = "this model needs transformers; pip install 'orderone[transformers]'"
        raise InputError(message, "missing-package", argument="model") from error
    # The warnings concern text generation, which is not used here.
    transformers.logging.set_verbosity_error()
    return transformers


MODELS = {
    "gpt2": Model(
        gpt2, _text, "GPT-2 of Hugging Face (tied) on text of the Python standard library"
    ),
    "llama": Model(llama, _text, "Llama of Hugging Face on text of the Python standard library"),
    "vit": Model(vit, _named_images, "ViT of Hugging Face on scikit-learn's digits"),
    "mlp": Model(mlp, _images, "ReLU MLP of plain PyTorch on scikit-learn's digits", multiple=1),
}
