"""Small models of many Hugging Face families, all without dropout, built from one table.

`build(family, width)` makes a model with two layers and heads of 8; `**options` override its
configuration. `batch_of(family)` returns the data function of a family: tokens, tokens for
an encoder and a decoder, images or sound.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

VOCAB = 64
LENGTH = 16
HEAD = 8
LAYERS = 2
CLASSES = 4
PIXELS = 16
MEL_BINS = 8
SAMPLES = 160


@dataclass(frozen=True)
class Family:
    """Names of the classes in `transformers`, and extra settings of the configuration.

    `options` may be a function of the width. `data` is a key of `DATA`.
    """

    config: str
    model: str
    options: dict[str, Any] | Callable[[int], dict[str, Any]] = field(default_factory=dict)
    data: str = "text"


NO_DROPOUT = {
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attn_pdrop": 0.0,
    "classifier_dropout": 0.0,
    "drop_path_rate": 0.0,
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "embd_pdrop": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "hidden_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "resid_pdrop": 0.0,
}
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
HEAD_DIM = {"head_dim": HEAD}
IMAGES = {"image_size": PIXELS, "patch_size": 4, "num_labels": CLASSES}
SOUND = {
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 2,
    "ctc_loss_reduction": "mean",
}


def all_heads(width: int) -> dict[str, Any]:
    """Return options for models without grouped queries."""
    return {"num_key_value_heads": max(width // HEAD, 1)}


def encoder_decoder(width: int) -> dict[str, Any]:
    return {
        "d_model": width,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "encoder_attention_heads": width // HEAD,
        "decoder_attention_heads": width // HEAD,
        "encoder_ffn_dim": 2 * width,
        "decoder_ffn_dim": 2 * width,
        "decoder_start_token_id": 0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    }


def t5(width: int) -> dict[str, Any]:
    heads = width // HEAD
    sizes = {"d_model": width, "d_kv": HEAD, "d_ff": 2 * width, "num_heads": heads}
    return sizes | {"num_layers": LAYERS, "decoder_start_token_id": 0}


def whisper(width: int) -> dict[str, Any]:
    sizes = {"num_mel_bins": MEL_BINS, "max_source_positions": LENGTH, "max_target_positions": 16}
    return encoder_decoder(width) | sizes


def swin(width: int) -> dict[str, Any]:
    stages = {"depths": [1, 1], "num_attention_heads": [width // HEAD, width // HEAD * 2]}
    return IMAGES | stages | {"embed_dim": width, "window_size": 2, "patch_size": 2}


def segformer(width: int) -> dict[str, Any]:
    return {
        "num_labels": CLASSES,
        "hidden_sizes": [width, 2 * width],
        "depths": [1, 1],
        "num_encoder_blocks": 2,
        "num_attention_heads": [width // HEAD, width // HEAD],
        "sr_ratios": [2, 1],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
        "mlp_ratios": [2, 2],
        "classifier_dropout_prob": 0.0,
    }


def convolutions(width: int) -> dict[str, Any]:
    return {
        "num_labels": CLASSES,
        "hidden_sizes": [width, 2 * width],
        "depths": [1, 1],
        "num_stages": 2,
        "embedding_size": width,
        "layer_type": "basic",
    }


# --- families that the table of the documentation names -------------------------------------------

FAMILIES = {
    "bart": Family("BartConfig", "BartForConditionalGeneration", encoder_decoder),
    "bert": Family("BertConfig", "BertForMaskedLM"),
    "bloom": Family("BloomConfig", "BloomForCausalLM"),
    "deepseek-v3": Family(
        "DeepseekV3Config", "DeepseekV3ForCausalLM", lambda w: EXPERTS | DEEPSEEK | all_heads(w)
    ),
    "dinov2": Family("Dinov2Config", "Dinov2ForImageClassification", IMAGES, "images"),
    "falcon": Family("FalconConfig", "FalconForCausalLM"),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", HEAD_DIM),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", HEAD_DIM),
    "gpt2": Family("GPT2Config", "GPT2LMHeadModel"),
    "gpt-neox": Family("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    "granite": Family("GraniteConfig", "GraniteForCausalLM"),
    "llama": Family("LlamaConfig", "LlamaForCausalLM"),
    "mamba": Family("MambaConfig", "MambaForCausalLM", {"state_size": 4}),
    "mistral": Family("MistralConfig", "MistralForCausalLM"),
    "mixtral": Family("MixtralConfig", "MixtralForCausalLM", EXPERTS | {"num_local_experts": 4}),
    "modernbert": Family(
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {"cls_token_id": 0, "sep_token_id": 1, "global_attn_every_n_layers": 2},
    ),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM"),
    "opt": Family("OPTConfig", "OPTForCausalLM", {"do_layer_norm_before": True}),
    "phi": Family("PhiConfig", "PhiForCausalLM"),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM"),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", HEAD_DIM),
    "qwen3-moe": Family(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        EXPERTS | HEAD_DIM | {"num_experts": 4, "moe_intermediate_size": 16},
    ),
    "stablelm": Family("StableLmConfig", "StableLmForCausalLM"),
    "t5": Family("T5Config", "T5ForConditionalGeneration", t5),
    "vit": Family("ViTConfig", "ViTForImageClassification", IMAGES, "images"),
    "whisper": Family("WhisperConfig", "WhisperForConditionalGeneration", whisper, "spectra"),
    # --- further ones, tried to find out whether the mechanism is general -------------------------
    "albert": Family("AlbertConfig", "AlbertForMaskedLM", {"embedding_size": 16}),
    "codegen": Family("CodeGenConfig", "CodeGenForCausalLM", {"rotary_dim": 4}),
    "cohere": Family("CohereConfig", "CohereForCausalLM"),
    "convnext": Family("ConvNextConfig", "ConvNextForImageClassification", convolutions, "images"),
    "deberta-v2": Family(
        "DebertaV2Config",
        "DebertaV2ForMaskedLM",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    "distilbert": Family(
        "DistilBertConfig", "DistilBertForMaskedLM", lambda w: {"dim": w, "hidden_dim": 2 * w}
    ),
    "electra": Family("ElectraConfig", "ElectraForMaskedLM", {"embedding_size": 16}),
    "exaone4": Family("Exaone4Config", "Exaone4ForCausalLM"),
    "gemma": Family("GemmaConfig", "GemmaForCausalLM", HEAD_DIM),
    "glm": Family("GlmConfig", "GlmForCausalLM", HEAD_DIM),
    "gpt-j": Family("GPTJConfig", "GPTJForCausalLM", {"rotary_dim": 4}),
    "gpt-neo": Family(
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "gpt-oss": Family(
        "GptOssConfig", "GptOssForCausalLM", EXPERTS | HEAD_DIM | {"num_local_experts": 4}
    ),
    "granite-moe": Family(
        "GraniteMoeConfig", "GraniteMoeForCausalLM", EXPERTS | {"num_local_experts": 4}
    ),
    "hubert": Family("HubertConfig", "HubertForCTC", SOUND, "sound"),
    "jamba": Family(
        "JambaConfig",
        "JambaForCausalLM",
        EXPERTS
        | {
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "lfm2": Family("Lfm2Config", "Lfm2ForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    "longformer": Family(
        "LongformerConfig",
        "LongformerForMaskedLM",
        {"attention_window": 4, "max_position_embeddings": 32},
    ),
    "mamba2": Family(
        "Mamba2Config",
        "Mamba2ForCausalLM",
        lambda w: {
            "num_heads": w // 4,
            "head_dim": 8,
            "state_size": 4,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    "mpt": Family(
        "MptConfig",
        "MptForCausalLM",
        lambda w: {"d_model": w, "n_heads": w // HEAD, "n_layers": LAYERS},
    ),
    "nemotron": Family("NemotronConfig", "NemotronForCausalLM"),
    "olmoe": Family("OlmoeConfig", "OlmoeForCausalLM", EXPERTS | {"num_experts": 4}),
    "pegasus": Family("PegasusConfig", "PegasusForConditionalGeneration", encoder_decoder),
    "persimmon": Family("PersimmonConfig", "PersimmonForCausalLM"),
    "recurrent-gemma": Family(
        "RecurrentGemmaConfig",
        "RecurrentGemmaForCausalLM",
        lambda w: {
            "lru_width": w,
            "attention_window_size": 8,
            "block_types": ["recurrent", "attention"],
        },
    ),
    "resnet": Family("ResNetConfig", "ResNetForImageClassification", convolutions, "images"),
    "roberta": Family(
        "RobertaConfig", "RobertaForMaskedLM", {"max_position_embeddings": LENGTH + 4}
    ),
    "rwkv": Family("RwkvConfig", "RwkvForCausalLM", {"context_length": LENGTH}),
    "segformer": Family("SegformerConfig", "SegformerForImageClassification", segformer, "images"),
    "smollm3": Family("SmolLM3Config", "SmolLM3ForCausalLM"),
    "starcoder2": Family("Starcoder2Config", "Starcoder2ForCausalLM"),
    "swin": Family("SwinConfig", "SwinForImageClassification", swin, "images"),
    "wav2vec2": Family("Wav2Vec2Config", "Wav2Vec2ForCTC", SOUND, "sound"),
    "xlm": Family(
        "XLMConfig",
        "XLMWithLMHeadModel",
        lambda w: {"emb_dim": w, "n_heads": w // HEAD, "n_layers": LAYERS},
    ),
}


# --- families that the table does not name: planned, checked and stacked in tests of their own ----

POSITIONS_FROM_PADDING = {"max_position_embeddings": LENGTH + 4}

MORE = {
    "apertus": Family("ApertusConfig", "ApertusForCausalLM"),
    "arcee": Family("ArceeConfig", "ArceeForCausalLM"),
    "bamba": Family(
        "BambaConfig",
        "BambaForCausalLM",
        lambda w: {
            "mamba_n_heads": w // 4,
            "mamba_d_head": 8,
            "mamba_d_state": 4,
            "mamba_n_groups": 1,
            "attn_layer_indices": [1],
            "mamba_chunk_size": 8,
        },
    ),
    "beit": Family("BeitConfig", "BeitForImageClassification", IMAGES, "images"),
    "cohere2": Family("Cohere2Config", "Cohere2ForCausalLM"),
    "convbert": Family(
        "ConvBertConfig",
        "ConvBertForMaskedLM",
        {"embedding_size": 8, "head_ratio": 2, "conv_kernel_size": 3},
    ),
    "ctrl": Family(
        "CTRLConfig", "CTRLLMHeadModel", lambda w: {"dff": 2 * w, "n_positions": LENGTH}
    ),
    "diffllama": Family("DiffLlamaConfig", "DiffLlamaForCausalLM", all_heads),
    "doge": Family("DogeConfig", "DogeForCausalLM", HEAD_DIM),
    "esm": Family("EsmConfig", "EsmForMaskedLM", POSITIONS_FROM_PADDING | {"mask_token_id": 3}),
    "falcon-mamba": Family("FalconMambaConfig", "FalconMambaForCausalLM", {"state_size": 4}),
    "glm4": Family("Glm4Config", "Glm4ForCausalLM", HEAD_DIM),
    "gpt-bigcode": Family("GPTBigCodeConfig", "GPTBigCodeForCausalLM"),
    "helium": Family("HeliumConfig", "HeliumForCausalLM", HEAD_DIM),
    "marian": Family("MarianConfig", "MarianMTModel", encoder_decoder),
    "mbart": Family("MBartConfig", "MBartForConditionalGeneration", encoder_decoder),
    "minimax": Family(
        "MiniMaxConfig",
        "MiniMaxForCausalLM",
        EXPERTS
        | HEAD_DIM
        | {
            "num_local_experts": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 8,
        },
    ),
    "nanochat": Family("NanoChatConfig", "NanoChatForCausalLM"),
    "olmo": Family("OlmoConfig", "OlmoForCausalLM"),
    "phimoe": Family("PhimoeConfig", "PhimoeForCausalLM", EXPERTS | {"num_local_experts": 4}),
    "poolformer": Family(
        "PoolFormerConfig",
        "PoolFormerForImageClassification",
        lambda w: {
            "hidden_sizes": [w, 2 * w],
            "depths": [1, 1],
            "num_encoder_blocks": 2,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "padding": [2, 1],
            "num_labels": CLASSES,
        },
        "images",
    ),
    "qwen2-moe": Family(
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        lambda w: (
            EXPERTS
            | {
                "num_experts": 4,
                "moe_intermediate_size": w,
                "shared_expert_intermediate_size": 2 * w,
            }
        ),
    ),
    "roformer": Family("RoFormerConfig", "RoFormerForMaskedLM"),
    "swinv2": Family("Swinv2Config", "Swinv2ForImageClassification", swin, "images"),
}


def family_of(name: str) -> Family:
    """Return the entry of a family."""
    return FAMILIES.get(name) or MORE[name]


def build(family: str, width: int = 32, **options: Any) -> nn.Module:
    """Return a new model of `family`; the caller sets the seed."""
    import transformers

    entry = family_of(family)
    heads = max(width // HEAD, 1)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "ffn_dim": 2 * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 2, 1),
        "max_position_embeddings": LENGTH,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    extra = entry.options(width) if callable(entry.options) else entry.options
    config = getattr(transformers, entry.config)(**sizes | NO_DROPOUT | extra | options)
    return getattr(transformers, entry.model)(config)


ONLY_EAGER = frozenset(
    (
        "bloom",
        "codegen",
        "convbert",
        "convnext",
        "ctrl",
        "deberta-v2",
        "falcon-mamba",
        "gemma2",
        "gpt-j",
        "gpt-neo",
        "gpt-oss",
        "longformer",
        "mamba",
        "mamba2",
        "mpt",
        "poolformer",
        "resnet",
        "roformer",
        "rwkv",
        "swinv2",
        "xlm",
    )
)


def attentions(family: str) -> tuple[str, ...]:
    """Return the implementations of attention that `transformers` has for a family."""
    return ("eager",) if family in ONLY_EAGER else ("sdpa", "eager")


def longer(family: str, length: int) -> dict[str, int]:
    """Return options for texts of this length."""
    if family_of(family).data != "text":
        return {}
    return {"max_position_embeddings": length + 4, "context_length": length}


# --- data: the same batch for the same step and seed ----------------------------------------------


def _generator(step: int, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + step)


def batch(step: int, seed: int, size: int = 4, length: int = LENGTH) -> dict[str, Tensor]:
    """Return token ids that are also the labels."""
    ids = torch.randint(3, VOCAB, (size, length), generator=_generator(step, seed))
    return {"input_ids": ids, "labels": ids}


def _images(step: int, seed: int, size: int = 4, length: int = LENGTH) -> dict[str, Tensor]:
    generator = _generator(step, seed)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return {
        "pixel_values": torch.randn(size, 3, PIXELS, PIXELS, generator=generator),
        "labels": labels,
    }


def _spectra(step: int, seed: int, size: int = 4, length: int = LENGTH) -> dict[str, Tensor]:
    generator = _generator(step, seed)
    spectra = torch.randn(size, MEL_BINS, 2 * LENGTH, generator=generator)
    labels = torch.randint(3, VOCAB, (size, 8), generator=generator)
    return {"input_features": spectra, "labels": labels}


def _sound(step: int, seed: int, size: int = 4, length: int = LENGTH) -> dict[str, Tensor]:
    generator = _generator(step, seed)
    labels = torch.randint(3, VOCAB, (size, 4), generator=generator)
    return {"input_values": torch.randn(size, SAMPLES, generator=generator), "labels": labels}


DATA: dict[str, Callable[..., dict[str, Tensor]]] = {
    "text": batch,
    "images": _images,
    "spectra": _spectra,
    "sound": _sound,
}


def batch_of(family: str) -> Callable[..., dict[str, Tensor]]:
    """Return the data function of a family."""
    return DATA[family_of(family).data]
