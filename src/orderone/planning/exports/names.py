"""Names of the tensors of Hugging Face models in other trainers.

Each table maps the name of a tensor to the names that a trainer gives it. `{}` stands for the
number of a layer and `{expert}` for that of an expert. A tensor of the trainer may hold several
tensors of Hugging Face (Megatron packs queries, keys and values), and the other way round (packed
experts). Some have a second name in the trainer, which depends on its settings. Sources:

    torchtitan 0.3.0      torchtitan/models/{llama3,qwen3}/state_dict_adapter.py
    olmo-core 3.0.0       olmo_core/nn/hf/convert.py
    megatron-core 0.16.1  megatron/core/models/gpt/gpt_layer_specs.py

NeMo Automodel, DeepSpeed and the Trainer of Hugging Face use the names of the model.
"""

import re
from collections.abc import Mapping
from typing import TypeAlias

Table: TypeAlias = Mapping[str, tuple[str, ...]]

LAYER = "model.layers.{}."

TORCHTITAN: Table = {
    "model.embed_tokens.weight": ("tok_embeddings.weight",),
    "model.norm.weight": ("norm.weight",),
    "lm_head.weight": ("lm_head.weight",),
    LAYER + "self_attn.q_proj.weight": ("layers.{}.attention.qkv_linear.wq.weight",),
    LAYER + "self_attn.k_proj.weight": ("layers.{}.attention.qkv_linear.wk.weight",),
    LAYER + "self_attn.v_proj.weight": ("layers.{}.attention.qkv_linear.wv.weight",),
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


def renamed(name: str, experts: int, table: Table) -> tuple[str, ...] | None:
    """Return the names of a tensor in the trainer of `table`; None if it does not have this name.

    `experts` is the number of experts if the tensor holds several of them.
    """
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
    targets = table.get(re.sub(r"(?<=\.)\d+(?=\.)", "{}", name))
    if targets is None:
        return None
    names: list[str] = []
    for target in targets:
        if "{expert}" in target:
            names += [target.format(*numbers, expert=expert) for expert in range(experts)]
        else:
            names.append(target.format(*numbers))
    return tuple(names)
