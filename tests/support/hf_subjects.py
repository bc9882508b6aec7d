"""Small Hugging Face models without dropout, and padded batches for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, nn

VOCAB, LENGTH = 32, 8
HEADS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "max_position_embeddings": LENGTH,
    **HEADS,
}


def llama(**options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **SIZES | options))


def gpt2(**options: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=1, **sizes, **off, **options))


def bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    off: dict[str, Any] = dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0
    )
    return BertForMaskedLM(BertConfig(**SIZES | off | options))


def t5(**options: Any) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {
        "vocab_size": VOCAB,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
    }
    start = {"decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(dropout_rate=0.0, **start, **sizes, **options))


def bart(**options: Any) -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {
        f"{part}_{what}": n
        for part in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 32))
    }
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCAB,
            d_model=16,
            max_position_embeddings=LENGTH,
            dropout=0.0,
            forced_eos_token_id=None,
            **sizes,
            **tokens,
            **options,
        )
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
    "bart": bart,
}


def padded(generator: Generator, padding: str) -> dict[str, torch.Tensor]:
    """Return rows of several lengths; with "sometimes", half of the batches have no padding."""
    ids = torch.randint(3, VOCAB, (3, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH, (3, 1), generator=generator)
    if padding == "never" or (padding == "sometimes" and torch.rand((), generator=generator) < 0.5):
        lengths.fill_(LENGTH)
    mask = torch.arange(LENGTH) < lengths
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}
