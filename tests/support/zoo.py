"""Tiny, randomly initialised, unmodified models of many architectures, each as a function of its
width.

Heads have 16 channels and grow in number, the MLP is a constant multiple of the width, and nothing
drops out, unless the name or a comment says otherwise. Hugging Face models are built from their
config classes; nothing is downloaded. Where a plain model has no loss of its own, the targets are a
function of its inputs, so that every task can be learnt.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCAB, LENGTH, BATCH, IMAGE, CLASSES, FEATURES, HEAD = 101, 16, 4, 16, 10, 32, 16

Batch = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A model family: `build(width, layers=2)`, `batch(seed)` for its forward, and the loss of an
    output."""

    name: str
    build: Callable[..., nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], Tensor]

    def train(
        self,
        model: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        batch: Batch | None = None,
        steps: int = 4,
    ) -> list[float]:
        """Return the losses of a few steps on one batch."""
        batch, losses = self.batch(0) if batch is None else batch, []
        for _ in range(steps):
            loss = self.loss(model(**batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


ZOO: dict[str, Entry] = {}


# --- batches and losses ---------------------------------------------------------------------------


def _tokens(seed: int, length: int = LENGTH) -> Tensor:
    """Return tokens from 3 to 99, none of them special."""
    return torch.randint(
        3, VOCAB - 1, (BATCH, length), generator=torch.Generator().manual_seed(seed)
    )


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def causal(seed: int) -> Batch:
    ids = _tokens(seed)
    return {"input_ids": ids, "labels": ids.clone()}


def masked(seed: int) -> Batch:
    """Every fourth token is replaced by the token 3, and predicted."""
    ids = _tokens(seed)
    hidden = torch.arange(LENGTH) % 4 == seed % 4
    return {"input_ids": ids.masked_fill(hidden, 3), "labels": ids.masked_fill(~hidden, -100)}


def replaced(seed: int) -> Batch:
    """Whether a token was replaced (ELECTRA): here, whether it is odd."""
    ids = _tokens(seed)
    return {"input_ids": ids, "labels": ids % 2}


def seq2seq(seed: int) -> Batch:
    return {"input_ids": _tokens(seed), "labels": _tokens(seed + 1)}


def spectrogram(seed: int) -> Batch:
    return {"input_features": _normal(seed, BATCH, 16, 2 * LENGTH), "labels": _tokens(seed)}


def audio(seed: int) -> Batch:
    return {"input_values": _normal(seed, BATCH, 400), "labels": _tokens(seed, 4)}


def image(seed: int) -> Batch:
    x = _normal(seed, BATCH, 3, IMAGE, IMAGE)
    return {"pixel_values": x, "labels": _class_of(x)}


def image_and_text(seed: int) -> Batch:
    ids = _tokens(seed)
    ids[:, -1] = VOCAB - 1  # the end of text, at which the text tower is read
    return {"input_ids": ids, "pixel_values": image(seed)["pixel_values"], "return_loss": True}


def features(seed: int) -> Batch:
    return {"x": _normal(seed, BATCH, FEATURES)}


def pixels(seed: int) -> Batch:
    return {"x": _normal(seed, BATCH, 3, IMAGE, IMAGE)}


def text(seed: int) -> Batch:
    return {"ids": _tokens(seed)}


def two_texts(seed: int) -> Batch:
    return {"source": _tokens(seed + 1), "ids": _tokens(seed)}


def nano(seed: int) -> Batch:
    ids = _tokens(seed, LENGTH + 1)
    return {"idx": ids[:, :-1], "targets": ids[:, 1:].contiguous()}


def _class_of(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :CLASSES].argmax(-1)


def own_loss(output: Any, batch: Batch) -> Tensor:
    return output.loss


def second(output: Any, batch: Batch) -> Tensor:
    return output[1]


def classify(output: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(output, _class_of(batch["x"]))


def parity(output: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(output, batch["ids"][:, 0] % 2)


def next_token(output: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(output[:, :-1].flatten(0, 1), batch["ids"][:, 1:].flatten())


# --- Hugging Face ---------------------------------------------------------------------------------


def _defaults(config: type) -> dict[str, Any]:
    """Return the arguments of a configuration: a dataclass, and in Transformers 5.0 a class."""
    if is_dataclass(config):
        return {field.name: field.default for field in fields(config)}
    return {name: argument.default for name, argument in signature(config).parameters.items()}


def _common(config: Any, width: int, layers: int) -> dict[str, Any]:
    """Sizes under the names that most configs share, and no dropout of any name: those that this
    config has."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD,
        "head_dim": HEAD,
        "max_position_embeddings": 2 * LENGTH,
        "num_labels": CLASSES,
        "image_size": IMAGE,
        "patch_size": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    known = _defaults(config)
    renamed = {config.attribute_map.get(name, name): value for name, value in sizes.items()}
    renamed |= {
        name: 0.0
        for name, default in known.items()
        if "drop" in name and isinstance(default, float)
    }
    pad = known.get("pad_token_id")
    if isinstance(pad, int) and pad >= VOCAB:
        renamed["pad_token_id"] = 0
    return {name: value for name, value in renamed.items() if name in known or name == "num_labels"}


def _hf(
    name: str,
    model: str,
    config: str,
    batch: Callable[[int], Batch],
    settings: Callable[[int, int], dict[str, Any]] = lambda w, n: {},
    assigned: dict[str, Any] | None = None,
) -> None:
    """Add a Hugging Face model: the common settings, its own over them, and what is assigned to the
    made config."""

    def build(width: int, layers: int = 2) -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        with warnings.catch_warnings():  # importing DeBERTa calls torch.jit.script
            warnings.simplefilter("ignore", DeprecationWarning)
            make_model, make_config = getattr(transformers, model), getattr(transformers, config)
        made = make_config(**_common(make_config, width, layers) | settings(width, layers))
        for key, value in (assigned or {}).items():
            setattr(made, key, value)
        return make_model(made)

    ZOO[name] = Entry(name, build, batch, own_loss)


# Decoders
_hf("gpt2", "GPT2LMHeadModel", "GPT2Config", causal)
_hf(
    "gpt2-untied",
    "GPT2LMHeadModel",
    "GPT2Config",
    causal,
    lambda w, n: {"tie_word_embeddings": False},
)
_hf("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", causal)
_hf(
    "opt",
    "OPTForCausalLM",
    "OPTConfig",
    causal,
    lambda w, n: {"ffn_dim": 4 * w, "word_embed_proj_dim": w},
)
_hf("llama", "LlamaForCausalLM", "LlamaConfig", causal)
_hf(
    "llama-gqa",
    "LlamaForCausalLM",
    "LlamaConfig",
    causal,
    lambda w, n: {"num_key_value_heads": w // HEAD // 2},
)
_hf(
    "llama-tied",
    "LlamaForCausalLM",
    "LlamaConfig",
    causal,
    lambda w, n: {"tie_word_embeddings": True},
)
_hf("llama-mqa", "LlamaForCausalLM", "LlamaConfig", causal, lambda w, n: {"num_key_value_heads": 1})
_hf(
    "llama-wider-heads",
    "LlamaForCausalLM",
    "LlamaConfig",
    causal,
    lambda w, n: {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": w // 4},
)
_hf(
    "mistral",
    "MistralForCausalLM",
    "MistralConfig",
    causal,
    lambda w, n: {"num_key_value_heads": w // HEAD // 2, "sliding_window": LENGTH // 2},
)
_hf("qwen2", "Qwen2ForCausalLM", "Qwen2Config", causal)
_hf("qwen3", "Qwen3ForCausalLM", "Qwen3Config", causal)
_hf("gemma", "GemmaForCausalLM", "GemmaConfig", causal)
_hf(
    "gemma2",
    "Gemma2ForCausalLM",
    "Gemma2Config",
    causal,
    lambda w, n: {"query_pre_attn_scalar": HEAD},
)
_hf(
    "gemma3",
    "Gemma3ForCausalLM",
    "Gemma3TextConfig",
    causal,
    lambda w, n: {
        "query_pre_attn_scalar": HEAD,
        "sliding_window": LENGTH // 2,
        "sliding_window_pattern": 2,
    },
)
_hf("phi", "PhiForCausalLM", "PhiConfig", causal)
_hf("phi3", "Phi3ForCausalLM", "Phi3Config", causal)
_hf(
    "falcon", "FalconForCausalLM", "FalconConfig", causal
)  # one head of keys and values; MLP beside the attention
_hf("bloom", "BloomForCausalLM", "BloomConfig", causal)
_hf(
    "olmo2", "Olmo2ForCausalLM", "Olmo2Config", causal
)  # queries and keys are normed over all heads at once
_hf(
    "granite",
    "GraniteForCausalLM",
    "GraniteConfig",
    causal,
    lambda w, n: {  # multipliers of Granite 3.0, which do not change with the width
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 1 / HEAD,
        "logits_scaling": 8.0,
    },
)
_hf("cohere", "CohereForCausalLM", "CohereConfig", causal)
_hf(
    "cohere-qk-norm",
    "CohereForCausalLM",
    "CohereConfig",
    causal,
    lambda w, n: {"use_qk_norm": True},
)  # 2-d gains
_hf("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", causal)
_hf("stablelm", "StableLmForCausalLM", "StableLmConfig", causal)
_hf("mixtral", "MixtralForCausalLM", "MixtralConfig", causal, lambda w, n: {"num_local_experts": 4})
_hf(
    "qwen3-moe",
    "Qwen3MoeForCausalLM",
    "Qwen3MoeConfig",
    causal,
    lambda w, n: {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 2 * w},
)
_hf(
    "deepseek-v3",  # the first layer is dense; the ranks of the latents grow with the width
    "DeepseekV3ForCausalLM",
    "DeepseekV3Config",
    causal,
    lambda w, n: {
        "moe_intermediate_size": w,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": w // 2,
        "kv_lora_rank": w // 4,
        "qk_rope_head_dim": HEAD // 2,
        "qk_nope_head_dim": HEAD // 2,
        "v_head_dim": HEAD,
    },
)
_hf(
    "mamba", "MambaForCausalLM", "MambaConfig", causal
)  # tied; the rank of the time steps is width / 16

# Encoders
_hf("bert", "BertForMaskedLM", "BertConfig", masked)
_hf("roberta", "RobertaForMaskedLM", "RobertaConfig", masked)
_hf(
    "distilbert",
    "DistilBertForMaskedLM",
    "DistilBertConfig",
    masked,
    lambda w, n: {"hidden_dim": 4 * w},
)
_hf(
    "electra",
    "ElectraForPreTraining",
    "ElectraConfig",
    replaced,
    lambda w, n: {"embedding_size": w // 2},
)
_hf(
    "deberta-v2",
    "DebertaV2ForMaskedLM",
    "DebertaV2Config",
    masked,
    lambda w, n: {
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
    },
)
_hf(
    "albert", "AlbertForMaskedLM", "AlbertConfig", masked, lambda w, n: {"embedding_size": 32}
)  # at every width

# Encoders with decoders
_hf(
    "t5",
    "T5ForConditionalGeneration",
    "T5Config",
    seq2seq,
    lambda w, n: {"d_ff": 4 * w, "decoder_start_token_id": 0},
)
_hf(
    # still tied: since transformers 5 the setting only says that the head's input is not scaled by
    # width^-1/2
    "t5-v1.1",
    "T5ForConditionalGeneration",
    "T5Config",
    seq2seq,
    lambda w, n: {
        "d_ff": 4 * w,
        "decoder_start_token_id": 0,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    },
)
_hf(
    # the only way to untie it; the encoder and the decoder then have embeddings of their own
    "t5-untied",
    "T5ForConditionalGeneration",
    "T5Config",
    seq2seq,
    lambda w, n: {"d_ff": 4 * w, "decoder_start_token_id": 0},
    assigned={"tie_word_embeddings": False, "scale_decoder_outputs": False},
)


def _both(w: int, n: int) -> dict[str, Any]:
    side = {"layers": n, "attention_heads": w // HEAD, "ffn_dim": 4 * w}
    return {
        f"{coder}_{key}": value for coder in ("encoder", "decoder") for key, value in side.items()
    }


_hf("bart", "BartForConditionalGeneration", "BartConfig", seq2seq, _both)
_hf(
    "whisper",
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    spectrogram,
    lambda w, n: (
        _both(w, n)
        | {
            "num_mel_bins": 16,
            "max_source_positions": LENGTH,
            "max_target_positions": 2 * LENGTH,
            "decoder_start_token_id": 1,
            "begin_suppress_tokens": None,
        }
    ),
)

# Images and sound
_hf("vit", "ViTForImageClassification", "ViTConfig", image)
_hf("deit", "DeiTForImageClassification", "DeiTConfig", image)


def _clip(w: int, n: int) -> dict[str, Any]:
    from transformers import CLIPTextConfig, CLIPVisionConfig

    own = {"projection_dim": w}
    text_config = _common(CLIPTextConfig, w, n) | own | {"eos_token_id": VOCAB - 1}
    return {
        "text_config": text_config,
        "vision_config": _common(CLIPVisionConfig, w, n) | own,
    } | own


_hf("clip", "CLIPModel", "CLIPConfig", image_and_text, _clip)
_hf(
    "convnext",
    "ConvNextForImageClassification",
    "ConvNextConfig",
    image,
    lambda w, n: {"num_stages": 2, "hidden_sizes": [w, 2 * w], "depths": [n, n]},
)
_hf(
    "swin",
    "SwinForImageClassification",
    "SwinConfig",
    image,
    lambda w, n: {
        "embed_dim": w,
        "depths": [n, n],
        "num_heads": [w // HEAD, 2 * w // HEAD],
        "patch_size": 2,
        "window_size": 2,
    },
)
_hf(
    "resnet",
    "ResNetForImageClassification",
    "ResNetConfig",
    image,
    lambda w, n: {"embedding_size": w, "hidden_sizes": [w, 2 * w], "depths": [n, n]},
)
_hf(
    "wav2vec2",
    "Wav2Vec2ForCTC",
    "Wav2Vec2Config",
    audio,
    lambda w, n: {
        "conv_dim": [w, w],
        "conv_stride": [5, 4],
        "conv_kernel": [10, 8],
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4,
        "apply_spec_augment": False,
        "ctc_loss_reduction": "mean",
    },
)


# --- plain torch ----------------------------------------------------------------------------------


def _torch(
    name: str, batch: Callable[[int], Batch], loss: Callable[[Any, Batch], Tensor]
) -> Callable[[type], type]:
    """Add the class of a plain model, built from a width and a number of layers."""

    def add(model: type) -> type:
        ZOO[name] = Entry(name, lambda width, layers=2: model(width, layers), batch, loss)
        return model

    return add


class _Chain(nn.Module):
    """Modules that run one after the other; `parts(width, layers)` returns them."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.net = nn.Sequential(*self.parts(width, layers))

    def parts(self, width: int, layers: int) -> list[nn.Module]:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@_torch("mlp", features, classify)
class MLP(_Chain):
    def parts(self, width: int, layers: int) -> list[nn.Module]:
        hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return [nn.Linear(FEATURES, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES)]


@_torch("mlp-norm", features, classify)
class MLPNorm(_Chain):
    def parts(self, width: int, layers: int) -> list[nn.Module]:
        hidden = [
            part
            for _ in range(layers)
            for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
        ]
        return [
            nn.Linear(FEATURES, width),
            nn.LayerNorm(width),
            nn.GELU(),
            *hidden,
            nn.Linear(width, CLASSES),
        ]


class _ConvNet(_Chain):
    def parts(self, width: int, layers: int) -> list[nn.Module]:
        hidden = [
            part for _ in range(layers) for part in (*self.conv(width), self.norm(width), nn.ReLU())
        ]
        stem = [nn.Conv2d(3, width, 3, stride=2, padding=1), self.norm(width), nn.ReLU()]
        return [*stem, *hidden, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]

    def conv(self, width: int) -> list[nn.Module]:
        return [nn.Conv2d(width, width, 3, padding=1)]

    def norm(self, width: int) -> nn.Module:
        return nn.BatchNorm2d(width)


_torch("cnn-batchnorm", pixels, classify)(_ConvNet)


@_torch("cnn-groupnorm", pixels, classify)
class GroupNormNet(_ConvNet):
    def norm(self, width: int) -> nn.Module:
        return nn.GroupNorm(8, width)


@_torch("cnn-depthwise", pixels, classify)
class DepthwiseNet(_ConvNet):
    def conv(self, width: int) -> list[nn.Module]:
        return [nn.Conv2d(width, width, 3, padding=1, groups=width), nn.Conv2d(width, width, 1)]


class _Basic(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(fan_out)
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(fan_out)
        self.short = (
            nn.Identity()
            if fan_in == fan_out
            else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(
            self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x))))) + self.short(x)
        )


@_torch("resnet-basic", pixels, classify)
class ResNetBasic(_Chain):
    def parts(self, width: int, layers: int) -> list[nn.Module]:
        same = [_Basic(width, width, 1) for _ in range(layers - 1)]
        stem = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES)]
        return [*stem, *same, _Basic(width, 2 * width, 2), *head]


class _LayerScale(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.gain = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.mlp(self.norm(x))


@_torch("layer-scale", features, classify)
class LayerScaleNet(_Chain):
    def parts(self, width: int, layers: int) -> list[nn.Module]:
        blocks = [_LayerScale(width) for _ in range(layers)]
        return [nn.Linear(FEATURES, width), *blocks, nn.LayerNorm(width), nn.Linear(width, CLASSES)]


@_torch("nn-transformer", two_texts, next_token)
class Translator(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Embedding(LENGTH, width)
        self.body = nn.Transformer(
            width, width // HEAD, layers, layers, 4 * width, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(width, VOCAB)

    def forward(self, source: Tensor, ids: Tensor) -> Tensor:
        place = self.place.weight
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(
            self.body(self.embed(source) + place, self.embed(ids) + place, tgt_mask=mask)
        )


@_torch("nn-transformer-encoder", text, parity)
class EncoderClassifier(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width,
            width // HEAD,
            4 * width,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
            activation="gelu",
        )
        self.body = nn.TransformerEncoder(
            layer, layers, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids) + self.place).mean(1))


@_torch("lstm", text, next_token)
class LSTM(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.body = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids))[0])


class _NanoAttention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class _NanoMLP(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.gelu(self.c_fc(x)))


class _NanoBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = _NanoAttention(width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = _NanoMLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


@_torch("nano-gpt", nano, second)
class NanoGPT(nn.Module):
    """After nanoGPT: a tied head, 0.02 everywhere, and less of it in the projections into the
    residual stream."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, width),
                "wpe": nn.Embedding(LENGTH, width),
                "h": nn.ModuleList([_NanoBlock(width) for _ in range(layers)]),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, VOCAB, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * layers))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        wte, wpe, blocks, ln_f = self.transformer.values()
        x = wte(idx) + wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in blocks:  # pyright: ignore[reportGeneralTypeIssues]
            x = block(x)
        logits = self.lm_head(ln_f(x))
        return logits, None if targets is None else functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        )


class _Project(nn.Module):
    """`x @ weight`, with the transpose of the weight of nn.Linear."""

    def __init__(self, fan_in: int, fan_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) / math.sqrt(fan_in))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class _EinsumAttention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3, width, width // HEAD, HEAD) / math.sqrt(width))
        self.out = nn.Parameter(torch.randn(width // HEAD, HEAD, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = torch.einsum("btd,sdhk->sbhtk", x, self.qkv)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhtk,hkd->btd", mixed, self.out)


@_torch("custom-parameters", text, next_token)
class CustomParameters(nn.Module):
    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Parameter(torch.zeros(1, LENGTH, width))
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(2 * layers + 1)])
        self.attentions = nn.ModuleList([_EinsumAttention(width) for _ in range(layers)])
        self.ups = nn.ModuleList([_Project(width, 4 * width) for _ in range(layers)])
        self.downs = nn.ModuleList([_Project(4 * width, width) for _ in range(layers)])
        self.head = _Project(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place
        norms = iter(self.norms)
        for attention, up, down in zip(self.attentions, self.ups, self.downs, strict=True):
            x = x + attention(next(norms)(x))
            x = x + down(functional.silu(up(next(norms)(x))))
        return self.head(next(norms)(x))
