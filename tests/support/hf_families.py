"""Small language models of many Hugging Face families, all without dropout, built from one table.

`build(family, width)` makes a model with two layers and heads of 8; `**options` override its
configuration.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

VOCAB = 64
LENGTH = 16
HEAD = 8
LAYERS = 2


@dataclass(frozen=True)
class Family:
    """Names of the classes in `transformers`, and extra settings of the configuration."""

    config: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)


EXPERTS = {"num_experts_per_tok": 2}
DEEPSEEK = {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": HEAD,
    "qk_nope_head_dim": HEAD,
    "v_head_dim": HEAD,
    "moe_intermediate_size": 16,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

FAMILIES = {
    "bert": Family("BertConfig", "BertForMaskedLM", NO_DROPOUT),
    "deepseek-v3": Family("DeepseekV3Config", "DeepseekV3ForCausalLM", EXPERTS | DEEPSEEK),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": HEAD}),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": HEAD}),
    "gpt2": Family(
        "GPT2Config", "GPT2LMHeadModel", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ),
    "gpt-neox": Family("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "llama": Family("LlamaConfig", "LlamaForCausalLM"),
    "mistral": Family("MistralConfig", "MistralForCausalLM"),
    "mixtral": Family("MixtralConfig", "MixtralForCausalLM", EXPERTS | {"num_local_experts": 4}),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM"),
    "opt": Family("OPTConfig", "OPTForCausalLM", {"dropout": 0.0, "do_layer_norm_before": True}),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM"),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": HEAD}),
    "qwen3-moe": Family(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        EXPERTS | {"head_dim": HEAD, "num_experts": 4, "moe_intermediate_size": 16},
    ),
}


def build(family: str, width: int = 32, **options: Any) -> nn.Module:
    """Return a new model of `family`; the caller sets the seed."""
    import transformers

    entry = FAMILIES[family]
    heads = max(width // HEAD, 1)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "ffn_dim": 2 * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if family == "deepseek-v3" else max(heads // 2, 1),
        "max_position_embeddings": LENGTH,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    config = getattr(transformers, entry.config)(**sizes | entry.options | options)
    return getattr(transformers, entry.model)(config)


def batch(step: int, seed: int, size: int = 4, length: int = LENGTH) -> dict[str, Tensor]:
    """Return token ids that are also the labels, the same for the same step and seed."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    ids = torch.randint(3, VOCAB, (size, length), generator=generator)
    return {"input_ids": ids, "labels": ids}
