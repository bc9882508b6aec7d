"""Words that tell what a tensor is where shapes and owning modules do not.

All word lists of the package are here, except for the layouts of module types
(`observe.layouts`), which users can extend.
"""

import re
from dataclasses import dataclass

# --- names of tensors -----------------------------------------------------------------------------

_TABLES = ("pos", "embed", "token")
_POSITIONS = ("pos", "wpe", "class_token", "cls_token")
_ATTENTION = ("attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv")
_HEADS = ("head", "lm_head", "classifier", "readout", "unembed", "output_projection")
_QUERIES_KEYS_VALUES = ("qkv", "c_attn", "in_proj", "query_key_value")
_KEYS_VALUES = ("kv_proj", "to_kv", "key_value")
_ATTENTION_PARTS = {
    "Q": ("q", "query", "queries", "q_proj", "to_q", "wq", "q_lin"),
    "K": ("k", "key", "keys", "k_proj", "to_k", "wk", "k_lin"),
    "V": ("v", "value", "values", "v_proj", "to_v", "wv", "v_lin"),
    "U": (
        *("o", "out", "output", "o_proj", "out_proj", "c_proj"),
        *("to_out", "wo", "out_lin", "dense", "proj"),
    ),
}
EXPERT = "expert"


@dataclass(frozen=True)
class NameHints:
    """What the name of a tensor suggests."""

    table: bool  # a table of embeddings that a model owns without a module of its own
    positional: bool  # positions, or a class token, which stands in the same place
    attention: bool
    head: bool  # the module is called a head: `head.weight`, `model.lm_head.weight`
    expert: bool
    packed: int  # number of matrices of attention in one tensor
    attention_part: str | None  # Q, K, V or U


def read_name(name: str) -> NameHints:
    """Return what the name of a tensor suggests."""
    name = name.lower()
    attention = _has_any(name, _ATTENTION)
    packed = 1
    if attention and _has_any(name, _QUERIES_KEYS_VALUES):
        packed = 3
    elif attention and _has_any(name, _KEYS_VALUES):
        packed = 2
    parts = name.split(".")
    return NameHints(
        table=_has_any(name, _TABLES),
        positional=_has_any(name, _POSITIONS),
        attention=attention,
        head=len(parts) > 1 and parts[-2] in _HEADS,
        expert=EXPERT in name,
        packed=packed,
        attention_part=_attention_part(name),
    )


def _attention_part(name: str) -> str | None:
    module = re.sub(r"\.(weight|bias)$", "", name).rpartition(".")[2]
    for part, words in _ATTENTION_PARTS.items():
        if module in words:
            return part
    return None


def _has_any(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)


# --- module types ---------------------------------------------------------------------------------

# matrices side by side in the weights of recurrent modules
GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}
# modules that torch initialises uniformly within fan_in^-1/2
TORCH_DEFAULT_INIT = (
    *("Linear", "Conv1d", "Conv2d", "Conv3d"),
    "NonDynamicallyQuantizableLinear",
)

# --- keys of Hugging Face configurations ----------------------------------------------------------

TOKEN_KEYS = ("token_id", "token_index")
_OTHER_SIZES = (
    *("layer", "depth", "indices", "vocab", "label", "expert", "topk", "num_channels"),
    *("position", "n_ctx", "length", "window", "image_size", "patch"),
    *TOKEN_KEYS,
)


def is_width_key(key: str) -> bool:
    """Whether a size with this key can be a width."""
    return not _has_any(key, _OTHER_SIZES)
