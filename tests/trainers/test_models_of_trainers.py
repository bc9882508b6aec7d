"""Patterns of exports match the tensors of the models that the trainers build themselves."""

import importlib
import os

import pytest
import torch
from support import planned_models
from support.errors import refuses
from support.one_process import one_process

import orderone as o1

pytestmark = pytest.mark.filterwarnings("ignore")  # of these packages

# name of a plan -> model of torchtitan: module, flavor
TORCHTITAN = {
    "llama": ("llama3", "debugmodel"),
    "qwen3": ("qwen3", "debugmodel_non_fused_qkv"),
    "mixtral": ("qwen3", "debugmodel_moe"),
}


def must_match(export, model, ignored=()):
    """Every tensor of the first two layers has settings in the export."""
    names = [name for name, _ in model.named_parameters()]
    two = [n for n in names if not any(f".{k}." in n for k in range(2, 100)) or "experts" in n]
    found = export.settings(two)
    missing = [name for name in two if name not in found and not name.endswith(ignored)]
    assert not missing
    assert len(found) > 10


@pytest.mark.parametrize("name", TORCHTITAN)
def test_torchtitan(name):
    package, flavor = TORCHTITAN[name]
    module = pytest.importorskip(f"torchtitan.models.{package}")
    with torch.device("meta"):
        model = module.model_registry(flavor).model.build()
    # the stand-in for Mixtral has norms of queries and keys, too
    ignored = ("q_norm.weight", "k_norm.weight") if name == "mixtral" else ("\0",)
    must_match(planned_models.plan(name).export("torchtitan"), model, ignored)


def olmo_models():
    other_plan = importlib.import_module("test_exports").other_plan
    sizes = {"d_model": 64, "vocab_size": 64, "n_layers": 2, "n_heads": 4}
    experts = {"num_experts": 4, "top_k": 2, "expert_hidden_size": 32}
    return {
        "llama_like": (planned_models.plan("llama"), sizes),
        "llama_like_moe": (planned_models.plan("mixtral"), sizes | experts),
        "qwen3_0_6B": (planned_models.plan("qwen3"), {"vocab_size": 64}),
        "olmo2_1M": (other_plan("Olmo2ForCausalLM"), {"vocab_size": 64}),
        "gemma3_1B": (other_plan("Gemma3ForCausalLM"), {"vocab_size": 64}),
    }


@pytest.mark.parametrize(
    "name", ["llama_like", "llama_like_moe", "qwen3_0_6B", "olmo2_1M", "gemma3_1B"]
)
def test_olmo_core(name, monkeypatch):
    module = pytest.importorskip("olmo_core.nn.transformer")
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(__file__), "..", "planning"))
    plan, sizes = olmo_models()[name]
    model = getattr(module.TransformerConfig, name)(**sizes).build(init_device="meta")
    # Gemma is tied in Hugging Face, and has a readout of its own here
    ignored = ("w_out.weight",) if name.startswith("gemma") else ("\0",)
    must_match(plan.export("olmo-core", allow_loss="multipliers"), model, ignored)


def megatron_model(name):
    state = pytest.importorskip("megatron.core.parallel_state")
    layers = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    models = importlib.import_module("megatron.core.models.gpt.gpt_model")
    configs = importlib.import_module("megatron.core.transformer.transformer_config")
    one_process()
    if not state.model_parallel_is_initialized():
        state.initialize_model_parallel()
    gpt2, experts = name == "gpt2", 4 if name == "mixtral" else None
    options = (
        {} if gpt2 else {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu}
    )
    config = configs.TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True,
        add_bias_linear=gpt2, qk_layernorm=name == "qwen3", num_moe_experts=experts, **options,
        normalization="LayerNorm" if gpt2 else "RMSNorm",
    )  # fmt: skip
    layer = layers.get_gpt_layer_local_spec(
        num_experts=experts, moe_grouped_gemm=False, qk_layernorm=name == "qwen3"
    )
    return models.GPTModel(
        config, layer, vocab_size=64, max_sequence_length=32,
        position_embedding_type="learned_absolute" if gpt2 else "rope",
        share_embeddings_and_output_weights=gpt2,
    )  # fmt: skip


@pytest.mark.parametrize("name", planned_models.NAMES)
def test_megatron(name):
    model = megatron_model(name)
    export = planned_models.plan(name).export("megatron", allow_loss="multipliers")
    assert export.build(model)
    model.register_parameter("another", torch.nn.Parameter(torch.zeros(1)))
    with refuses("invalid-argument", argument="model"):
        export.build(model)


def test_names_as_is_match_nothing_in_megatron():
    """Why names are needed: Megatron's own code gives every tensor the same settings."""
    module = pytest.importorskip("megatron.core.optimizer")
    model = megatron_model("llama")
    plan: o1.Plan = planned_models.plan("llama")
    overrides = plan.export("megatron", names="as-is").build()
    config = module.OptimizerConfig(optimizer="adam", lr=3e-3, weight_decay=0.1)
    groups = module._get_param_groups([model], config, overrides)
    assert {group["max_lr"] for group in groups} == {3e-3}
