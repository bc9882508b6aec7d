"""Small Hugging Face models with plans, as users export them."""

from functools import cache
from typing import Any

import torch
import transformers
from torch import nn

import orderone as o1
from orderone.planning import Plan

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
BASE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
NAMES = ("llama", "qwen3", "mixtral", "gpt2")


def model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    if name == "qwen3":
        untied: dict[str, Any] = {"tie_word_embeddings": False, "head_dim": 16}
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **untied))
    if name == "mixtral":
        experts: dict[str, Any] = {"num_local_experts": 4}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **experts))
    config = transformers.GPT2Config(
        n_embd=64,
        n_head=4,
        n_layer=2,
        vocab_size=64,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


@cache
def plan(name: str) -> Plan:
    base = {"n_embd": 32, "n_head": 2} if name == "gpt2" else BASE
    return o1.plan(model(name), base=base, lr=3e-3, weight_decay=0.1)
