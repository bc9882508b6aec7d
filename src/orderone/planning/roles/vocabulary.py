"""Words in names that suggest the role of a tensor if shapes and owning modules do not show it.

All word lists of the package are here, except for the layouts of module types
(`observe.inventory`), which users can extend.
"""

# --- names of tensors -----------------------------------------------------------------------------

TABLES = ("pos", "embed", "token")
POSITIONS = ("pos", "wpe", "class_token", "cls_token")
ATTENTION = ("attn", "attention", "q_proj", "k_proj", "v_proj", "o_proj", "qkv")
HEADS = ("head", "lm_head", "classifier", "readout", "unembed", "output_projection")
QUERIES_KEYS_VALUES = ("qkv", "c_attn", "in_proj", "query_key_value")
KEYS_VALUES = ("kv_proj", "to_kv", "key_value")
ATTENTION_PARTS: dict[str, tuple[str, ...]] = {
    "Q": ("q", "query", "queries", "q_proj", "to_q", "wq", "q_lin"),
    "K": ("k", "key", "keys", "k_proj", "to_k", "wk", "k_lin"),
    "V": ("v", "value", "values", "v_proj", "to_v", "wv", "v_lin"),
    "U": (
        *("o", "out", "output", "o_proj", "out_proj", "c_proj"),
        *("to_out", "wo", "out_lin", "dense", "proj"),
    ),
}
EXPERT = "expert"
SHARED = "shared"  # experts that process every token
ROUTERS = ("router", "gate", "gating", "wg", "w_g", "w_gate", "switch")

# --- module types ---------------------------------------------------------------------------------

# number of matrices side by side in the weights of recurrent modules
GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}
# modules that torch initializes uniformly within fan_in^-1/2
TORCH_DEFAULT_INIT = (
    *("Linear", "Conv1d", "Conv2d", "Conv3d"),
    "NonDynamicallyQuantizableLinear",
)

# --- keys of Hugging Face configurations ----------------------------------------------------------

TOKEN_KEYS = ("token_id", "token_index")
OTHER_SIZES = (
    *("layer", "depth", "indices", "vocab", "label", "expert", "topk", "num_channels"),
    *("position", "n_ctx", "length", "window", "image_size", "patch"),
    *TOKEN_KEYS,
)
