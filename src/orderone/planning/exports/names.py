"""Names of the tensors of Hugging Face models in other trainers.

Each table maps the name of a tensor to the names that a trainer gives it. `{}` stands for the
number of a layer and `{expert}` for that of an expert. A tensor of the trainer may hold several
tensors of Hugging Face (Megatron packs queries, keys and values), and the other way round (packed
experts). Some have a second name in the trainer, which depends on its settings. Sources:

    torchtitan 0.3.0      torchtitan/models/{llama3,qwen3}/state_dict_adapter.py, and `wqkv` of
                          FusedQKVLinear, which only checkpoints split
    olmo-core 3.0.0       olmo_core/nn/hf/convert.py
    megatron-core 0.16.1  megatron/core/models/gpt/{gpt_model,gpt_layer_specs}.py
    nemo-automodel 0.7.0  nemo_automodel/components/moe/experts.py

DeepSpeed and the Trainer of Hugging Face use the names of the model. So does NeMo Automodel, except
for the experts of models that it has in its own implementation.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Table: TypeAlias = Mapping[str, tuple[str, ...]]

LAYER = "model.layers.{}."
NUMBER = r"(?<=\.)\d+(?=\.)"

TORCHTITAN: Table = {
    "model.embed_tokens.weight": ("tok_embeddings.weight",),
    "model.norm.weight": ("norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
    LAYER + "self_attn.q_proj.weight": (
        "layers.{}.attention.qkv_linear.wq.weight",
        "layers.{}.attention.qkv_linear.wqkv.weight",
    ),
    LAYER + "self_attn.k_proj.weight": (
        "layers.{}.attention.qkv_linear.wk.weight",
        "layers.{}.attention.qkv_linear.wqkv.weight",
    ),
    LAYER + "self_attn.v_proj.weight": (
        "layers.{}.attention.qkv_linear.wv.weight",
        "layers.{}.attention.qkv_linear.wqkv.weight",
    ),
    LAYER + "self_attn.o_proj.weight": ("layers.{}.attention.wo.weight",),
    LAYER + "self_attn.q_norm.weight": ("layers.{}.attention.q_norm.weight",),
    LAYER + "self_attn.k_norm.weight": ("layers.{}.attention.k_norm.weight",),
    LAYER + "mlp.gate_proj.weight": ("layers.{}.feed_forward.w1.weight",),
    LAYER + "mlp.up_proj.weight": ("layers.{}.feed_forward.w3.weight",),
    LAYER + "mlp.down_proj.weight": ("layers.{}.feed_forward.w2.weight",),
    LAYER + "mlp.gate.weight": ("layers.{}.moe.router.gate.weight",),
    LAYER + "mlp.experts.gate_up_proj": (
        "layers.{}.moe.routed_experts.inner_experts.w1_EFD",
        "layers.{}.moe.routed_experts.inner_experts.w3_EFD",
    ),
    LAYER + "mlp.experts.down_proj": ("layers.{}.moe.routed_experts.inner_experts.w2_EDF",),
    LAYER + "input_layernorm.weight": ("layers.{}.attention_norm.weight",),
    LAYER + "post_attention_layernorm.weight": ("layers.{}.ffn_norm.weight",),
}

OLMO_CORE: Table = {
    "model.embed_tokens.weight": ("embeddings.weight",),
    "model.norm.weight": ("lm_head.norm.weight",),
    "lm_head.weight": ("lm_head.w_out.weight",),
    LAYER + "self_attn.q_proj.weight": ("blocks.{}.attention.w_q.weight",),
    LAYER + "self_attn.k_proj.weight": ("blocks.{}.attention.w_k.weight",),
    LAYER + "self_attn.v_proj.weight": ("blocks.{}.attention.w_v.weight",),
    LAYER + "self_attn.o_proj.weight": ("blocks.{}.attention.w_out.weight",),
    LAYER + "self_attn.q_norm.weight": ("blocks.{}.attention.q_norm.weight",),
    LAYER + "self_attn.k_norm.weight": ("blocks.{}.attention.k_norm.weight",),
    LAYER + "mlp.gate_proj.weight": ("blocks.{}.feed_forward.w1.weight",),
    LAYER + "mlp.up_proj.weight": ("blocks.{}.feed_forward.w3.weight",),
    LAYER + "mlp.down_proj.weight": ("blocks.{}.feed_forward.w2.weight",),
    LAYER + "mlp.gate.weight": ("blocks.{}.feed_forward_moe.router.weight",),
    LAYER + "mlp.experts.gate_up_proj": (
        "blocks.{}.feed_forward_moe.experts.mlp.w1",
        "blocks.{}.feed_forward_moe.experts.mlp.w3",
    ),
    LAYER + "mlp.experts.down_proj": ("blocks.{}.feed_forward_moe.experts.mlp.w2",),
    LAYER + "input_layernorm.weight": ("blocks.{}.attention_norm.weight",),
    LAYER + "post_attention_layernorm.weight": ("blocks.{}.feed_forward_norm.weight",),
}

# OLMo-2 and OLMo-3 have norms behind the branches, Gemma 3 before and behind them.
OLMO_CORE_POST_NORM: Table = {
    **{name: names for name, names in OLMO_CORE.items() if "layernorm" not in name},
    LAYER + "post_attention_layernorm.weight": ("blocks.{}.attention_norm.weight",),
    LAYER + "post_feedforward_layernorm.weight": ("blocks.{}.feed_forward_norm.weight",),
}

OLMO_CORE_GEMMA: Table = {
    **OLMO_CORE,
    LAYER + "post_attention_layernorm.weight": ("blocks.{}.post_attention_norm.weight",),
    LAYER + "pre_feedforward_layernorm.weight": ("blocks.{}.feed_forward_norm.weight",),
    LAYER + "post_feedforward_layernorm.weight": ("blocks.{}.post_feed_forward_norm.weight",),
}

# The second name of norms and experts is that of Transformer Engine, which keeps a norm in the next
# linear layer.
MEGATRON: Table = {
    "model.embed_tokens.weight": ("embedding.word_embeddings.weight",),
    "model.norm.weight": ("decoder.final_layernorm.weight",),
    "lm_head.weight": ("output_layer.weight",),
    LAYER + "self_attn.q_proj.weight": ("decoder.layers.{}.self_attention.linear_qkv.weight",),
    LAYER + "self_attn.k_proj.weight": ("decoder.layers.{}.self_attention.linear_qkv.weight",),
    LAYER + "self_attn.v_proj.weight": ("decoder.layers.{}.self_attention.linear_qkv.weight",),
    LAYER + "self_attn.o_proj.weight": ("decoder.layers.{}.self_attention.linear_proj.weight",),
    LAYER + "self_attn.q_norm.weight": ("decoder.layers.{}.self_attention.q_layernorm.weight",),
    LAYER + "self_attn.k_norm.weight": ("decoder.layers.{}.self_attention.k_layernorm.weight",),
    LAYER + "mlp.gate_proj.weight": ("decoder.layers.{}.mlp.linear_fc1.weight",),
    LAYER + "mlp.up_proj.weight": ("decoder.layers.{}.mlp.linear_fc1.weight",),
    LAYER + "mlp.down_proj.weight": ("decoder.layers.{}.mlp.linear_fc2.weight",),
    LAYER + "mlp.gate.weight": ("decoder.layers.{}.mlp.router.weight",),
    LAYER + "mlp.experts.gate_up_proj": (
        "decoder.layers.{}.mlp.experts.local_experts.{expert}.linear_fc1.weight",
        "decoder.layers.{}.mlp.experts.linear_fc1.weight{expert}",
    ),
    LAYER + "mlp.experts.down_proj": (
        "decoder.layers.{}.mlp.experts.local_experts.{expert}.linear_fc2.weight",
        "decoder.layers.{}.mlp.experts.linear_fc2.weight{expert}",
    ),
    LAYER + "input_layernorm.weight": (
        "decoder.layers.{}.input_layernorm.weight",
        "decoder.layers.{}.self_attention.linear_qkv.layer_norm_weight",
    ),
    LAYER + "post_attention_layernorm.weight": (
        "decoder.layers.{}.pre_mlp_layernorm.weight",
        "decoder.layers.{}.mlp.linear_fc1.layer_norm_weight",
    ),
}


# GPT-2: every layer has a weight and a bias
_GPT2_LAYERS: Table = {
    "ln_1": ("input_layernorm.{kind}", "self_attention.linear_qkv.layer_norm_{kind}"),
    "attn.c_attn": ("self_attention.linear_qkv.{kind}",),
    "attn.c_proj": ("self_attention.linear_proj.{kind}",),
    "ln_2": ("pre_mlp_layernorm.{kind}", "mlp.linear_fc1.layer_norm_{kind}"),
    "mlp.c_fc": ("mlp.linear_fc1.{kind}",),
    "mlp.c_proj": ("mlp.linear_fc2.{kind}",),
}


def _megatron_gpt2() -> Table:
    table: dict[str, tuple[str, ...]] = {
        "transformer.wte.weight": ("embedding.word_embeddings.weight",),
        "transformer.wpe.weight": ("embedding.position_embeddings.weight",),
        "lm_head.weight": ("output_layer.weight",),
    }
    for kind in ("weight", "bias"):
        table[f"transformer.ln_f.{kind}"] = (f"decoder.final_layernorm.{kind}",)
        for layer, targets in _GPT2_LAYERS.items():
            names = [f"decoder.layers.{{}}.{target}" for target in targets]
            table[f"transformer.h.{{}}.{layer}.{kind}"] = tuple(
                name.replace("{kind}", kind) for name in names
            )
    return table


@dataclass(frozen=True)
class Family:
    """Names of the tensors of models that are built alike.

    `tied` has further names of an embedding that is also the readout: the last stage of a pipeline
    has a copy of it.
    """

    tensors: Table
    tied: Table = field(default_factory=dict[str, tuple[str, ...]])
    readout: str = "lm_head.weight"

    def renamed(self, experts: Mapping[str, int]) -> dict[str, tuple[str, ...]] | None:
        """Return the trainer's names of all tensors; None if a tensor is not in the table.

        `experts` maps the name of each tensor to the number of experts that it holds, or to 1.
        """
        mapped: dict[str, tuple[str, ...]] = {}
        for name, count in experts.items():
            targets = self.tensors.get(re.sub(NUMBER, "{}", name))
            if targets is None:
                return None
            if self.readout not in experts:
                targets += self.tied.get(name, ())
            mapped[name] = _with_numbers(targets, re.findall(NUMBER, name), count)
        return mapped


MEGATRON_COPY = ("output_layer.weight",)
FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "torchtitan": (Family(TORCHTITAN),),
    "megatron": (
        Family(MEGATRON, tied={"model.embed_tokens.weight": MEGATRON_COPY}),
        Family(_megatron_gpt2(), tied={"transformer.wte.weight": MEGATRON_COPY}),
    ),
    "olmo-core": (Family(OLMO_CORE), Family(OLMO_CORE_POST_NORM), Family(OLMO_CORE_GEMMA)),
}

# Trainers that go on without an error if no pattern matches a tensor. OLMo-core does so with a
# pipeline and in its own DDP, where a part of the model need not have all tensors (strict=False).
SILENT = frozenset({"megatron", "olmo-core"})
# Trainers that have more models than the tables, with names of their own. A model whose layers have
# no documented tensor is not one of OLMo-core's models, so it has its own names there.
OTHER_MODELS = frozenset({"megatron"})

# experts in NeMo Automodel's own implementations
NEMO_EXPERTS: Mapping[str, str] = {
    "experts.gate_up_proj": "experts.gate_and_up_projs",
    "experts.down_proj": "experts.down_projs",
}


def nemo_names(name: str) -> tuple[str, ...]:
    """Return the names of a tensor in NeMo Automodel: that of Hugging Face, and its own."""
    for ending, other in NEMO_EXPERTS.items():
        if name.endswith(f".{ending}"):
            return name, name.removesuffix(ending) + other
    return (name,)


def are_trainer_names(names: Collection[str], target: str) -> bool:
    """Return whether all names are names of the trainer already."""
    known: set[str] = set()
    for family in FAMILIES[target]:
        for targets in family.tensors.values():
            known |= {re.sub(NUMBER, "{}", t.replace("{expert}", "0")) for t in targets}
    return all(re.sub(NUMBER, "{}", name) in known for name in names)


def has_known_layers(names: Collection[str], target: str) -> bool:
    """Return whether a layer has a tensor with a documented name in this trainer."""
    known: set[str] = set()
    for family in FAMILIES[target]:
        known |= {name for name in family.tensors if "{}" in name}
    return any(re.sub(NUMBER, "{}", name) in known for name in names)


def _with_numbers(targets: tuple[str, ...], numbers: list[str], experts: int) -> tuple[str, ...]:
    names: list[str] = []
    for target in targets:
        if "{expert}" in target:
            names += [target.format(*numbers, expert=expert) for expert in range(experts)]
        else:
            names.append(target.format(*numbers))
    return tuple(names)
