"""Names of tensors in exports: documented ones, own ones, packed tensors."""

import re

import pytest
from support import planned_models
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.planning.exports.content import content

LOSSES = ("eps", "multipliers")


def small_plan():
    def build(width):
        return nn.Sequential(nn.Linear(8, width), nn.Linear(width, 2))

    return o1.plan(build(32), base=build(8), lr=0.1)


def test_documented_names_keep_every_tensor_of_the_plan():
    plan = planned_models.plan("llama")
    layers = 2  # queries, keys and values of a layer have a common name in torchtitan, too
    for target, more in {"torchtitan": layers, "olmo-core": 0}.items():
        made = content(plan, target, None)
        assert len(made.names) == len(plan.rows) + more
        assert not set(made.names) & {row.name for row in plan.rows} - {"lm_head.weight"}
        assert not made.notes


def test_unknown_models_keep_their_names_with_a_note():
    made = content(planned_models.plan("gpt2"), "torchtitan", None)
    assert "transformer.wte.weight" in made.names
    assert len(made.notes) == 1


def like_a_llama(width: int) -> nn.Module:
    """Return a model with a layer that has one tensor of a Llama, and others."""
    layer = nn.ModuleDict({"input_layernorm": nn.LayerNorm(width), "extra": nn.Linear(width, 8)})
    return nn.ModuleDict({"model": nn.ModuleDict({"layers": nn.ModuleList([layer])})})


@pytest.mark.parametrize("target", ["megatron", "olmo-core"])
def test_trainers_that_say_nothing_need_names(target):
    """They give the same settings to all tensors that no pattern matches, without a message."""
    plan = o1.plan(like_a_llama(32), base=like_a_llama(8), lr=1e-3)
    with refuses("export-names", argument="names"):
        plan.export(target)
    export = plan.export(target, names="as-is")
    assert set(export.settings()) == {row.name for row in plan.rows}
    assert not any("names=" in note for note in export.notes)


def test_a_model_unlike_all_of_olmo_core_keeps_its_names():
    """OLMo-core has no GPT-2: it trains the model itself. Megatron has many other models."""
    plan = small_plan()
    with refuses("export-names", argument="names"):
        plan.export("megatron")
    for export in (plan.export("olmo-core"), planned_models.plan("gpt2").export("olmo-core")):
        assert set(export.settings()) == set(export.names)
        assert len([note for note in export.notes if "names=" in note]) == 1


def test_models_of_the_trainer_need_no_names():
    """A plan of the trainer's own model has its names already."""

    class Names(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.embedding = nn.ModuleDict({"word_embeddings": nn.Embedding(8, width)})
            self.output_layer = nn.Linear(width, 8, bias=False)

    export = o1.plan(Names(32), base=Names(8), lr=1e-3).export("megatron")
    assert set(export.names) == {"embedding.word_embeddings.weight", "output_layer.weight"}


def test_tied_embeddings_have_a_copy_in_the_last_stage_of_megatron():
    tied = planned_models.plan("gpt2").export("megatron").settings()
    assert tied["output_layer.weight"] == tied["embedding.word_embeddings.weight"]
    llama = planned_models.plan("llama").export("megatron").settings()
    assert llama["output_layer.weight"] != llama["embedding.word_embeddings.weight"]


def test_a_model_with_other_tensors_is_refused():
    """`build` compares the names of the trainer's model with the patterns."""
    plan = planned_models.plan("llama")
    for target in ("nemo", "megatron", "torchtitan", "olmo-core", "deepspeed"):
        with refuses("invalid-argument", argument="model"):
            plan.export(target, allow_loss="eps").build(nn.Linear(2, 2))


def test_experts_have_two_names_in_nemo():
    settings = planned_models.plan("mixtral").export("nemo", allow_loss="eps").settings()
    layer = "model.layers.1.mlp.experts."
    assert settings[f"{layer}gate_and_up_projs"] == settings[f"{layer}gate_up_proj"]
    assert settings[f"{layer}down_projs"] == settings[f"{layer}down_proj"]


def test_initial_sizes_of_packed_tensors_must_agree():
    start = {"default": "fan-in", "*.q_proj.weight": "zero"}
    plan = o1.plan(planned_models.model("llama"), base=planned_models.BASE, lr=3e-3, init=start)
    export = plan.export("megatron")
    packed = "decoder.layers.0.self_attention.linear_qkv.weight"
    assert not any(re.search(entry["pattern"], packed) for entry in export.init)
    assert any(packed in note for note in export.notes)


def test_own_names():
    plan = planned_models.plan("gpt2")
    export = plan.export("torchtitan", allow_loss=LOSSES, names=lambda name: f"my.{name}")
    assert all(name.startswith("my.") for name in export.names)
    with refuses("invalid-argument", argument="names"):
        plan.export("torchtitan", allow_loss=LOSSES, names={"transformer.wte.weight": "wte"})


def test_tensors_that_a_trainer_packs_must_have_the_same_settings():
    mapping = {"default": 3e-3, "*.q_proj.weight": 1e-3}
    plan = o1.plan(planned_models.model("llama"), base=planned_models.BASE, lr=mapping)
    with refuses("export-packed", argument="target"):
        plan.export("megatron")
    export = plan.export("torchtitan")
    assert not any("wqkv" in name for name in export.names)
    assert any("wqkv" in note for note in export.notes)
