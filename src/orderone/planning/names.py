"""What names of tensors tell, where shapes and owners do not: tables of positions, heads, and the
parts of attention."""

import re

_TABLES = ("pos", "embed", "token")
_POSITIONS = ("pos", "wpe", "class_token", "cls_token")
_ATTENTION = ("attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv")
_HEADS = ("head", "lm_head", "classifier", "readout", "unembed", "output_projection")
_PACKED = {3: ("qkv", "c_attn", "in_proj", "query_key_value"), 2: ("kv_proj", "to_kv", "key_value")}
_PARTS = {
    "Q": ("q", "query", "queries", "q_proj", "to_q", "wq", "q_lin"),
    "K": ("k", "key", "keys", "k_proj", "to_k", "wk", "k_lin"),
    "V": ("v", "value", "values", "v_proj", "to_v", "wv", "v_lin"),
    "U": (
        "o",
        "out",
        "output",
        "o_proj",
        "out_proj",
        "c_proj",
        "to_out",
        "wo",
        "out_lin",
        "dense",
        "proj",
    ),
}


def is_table(name: str) -> bool:
    """A table of embeddings that a model owns itself, without a module that would tell."""
    return _any(_TABLES, name)


def is_positional(name: str) -> bool:
    """Added to tokens: positions, and a class token, which is added to nothing."""
    return _any(_POSITIONS, name)


def is_attention(name: str) -> bool:
    return _any(_ATTENTION, name)


def is_head(name: str) -> bool:
    """`head.weight`, `model.lm_head.weight`"""
    return name.lower().split(".")[-2:-1] in [[word] for word in _HEADS]


def packed(name: str) -> int:
    """How many matrices of attention one tensor holds."""
    return next(
        (number for number, words in _PACKED.items() if is_attention(name) and _any(words, name)), 1
    )


def part_of_attention(name: str) -> str | None:
    """Q, K, V or U, from the module's own name."""
    own = re.sub(r"\.(weight|bias)$", "", name.lower()).rpartition(".")[2]
    return next((part for part, words in _PARTS.items() if own in words), None)


def _any(words: tuple[str, ...], name: str) -> bool:
    return any(word in name.lower() for word in words)
