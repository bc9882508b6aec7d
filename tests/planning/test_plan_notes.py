"""Notes of a plan on arguments that are probably a mistake, and counts that its table shows."""

from functools import partial
from typing import Any

import pytest
import torch
from support.errors import refuses
from torch import nn
from transformers import (
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

import orderone as o1
from orderone.core.errors import code_of
from orderone.planning import text
from orderone.planning.draw import StartCounts, start_counts

MULT = text.COLUMNS.index("mult")


def mlp(width: int, layers: int = 1) -> nn.Module:
    hidden = [nn.Linear(width, width) for _ in range(layers)]
    return nn.Sequential(nn.Linear(8, width), *hidden, nn.Linear(width, 3))


def tied_gpt2() -> nn.Module:
    config = GPT2Config(
        n_embd=64,
        n_head=4,
        n_layer=2,
        vocab_size=50,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def codes(plan: o1.Plan) -> set[str | None]:
    return {code_of(note) for note in plan.notes}


def mult_cells(plan: o1.Plan) -> dict[str, str]:
    return {line[0]: line[MULT] for line in text.compressed(plan.rows)}


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({}, True),
        ({"optimizer": "sgd"}, True),
        ({"optimizer": "muon"}, True),
        ({"lr": 1e-3}, False),
        ({"lr": {"default": 1e-3, "hidden": 1e-2}}, False),
    ],
)
def test_a_learning_rate_that_was_not_passed_is_noted(options, noted):
    plan = o1.plan(mlp(32), base=mlp(8), **options)
    assert ("default-lr" in codes(plan)) == noted


def test_absolute_plans_note_a_learning_rate_that_was_not_passed():
    assert "default-lr" in codes(o1.plan(mlp(32), base="absolute"))
    assert "default-lr" not in codes(o1.plan(mlp(32), base="absolute", lr=1e-3))


@pytest.mark.parametrize(("model", "base", "noted"), [(8, 32, True), (32, 8, False), (8, 8, False)])
def test_a_base_that_is_larger_than_the_model_is_noted(model, base, noted):
    plan = o1.plan(mlp(model), base=mlp(base), lr=1e-3)
    assert ("larger-base" in codes(plan)) == noted


def test_nested_sizes_of_a_base_leave_the_other_sizes_as_they_are():
    def llava(width: int) -> nn.Module:
        sizes: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": width // 8}
        sizes |= {"hidden_size": width, "intermediate_size": 2 * width}
        config = LlavaConfig(
            text_config=LlamaConfig(vocab_size=32, num_key_value_heads=width // 8, **sizes),
            vision_config=CLIPVisionConfig(image_size=8, patch_size=4, **sizes),
        )
        return LlavaForConditionalGeneration(config)

    heads = {"num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    dotted = {f"text_config.{key}": size for key, size in heads.items()}
    dotted |= {f"vision_config.{key}": size for key, size in heads.items()}
    as_mappings = {
        "text_config": {**heads, "num_key_value_heads": 2},
        "vision_config": heads,
    }
    bases = [as_mappings, dotted | {"text_config.num_key_value_heads": 2}, llava(16)]
    tables = []
    for base in bases:
        plan = o1.plan(llava(64), base=base, lr=1e-3, probe=False)
        assert "depth-not-scaled" not in codes(plan)
        tables.append([(row.name, row.base_shape, row.lr) for row in plan.rows])
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize(("layers", "times"), [(4, "2 times"), (1, "0.75 times")])
def test_the_note_about_the_depth_has_the_ratio_of_depths(layers, times):
    plan = o1.plan(mlp(32, layers), base=mlp(32, 2 if layers == 1 else 1), lr=1e-3)
    [note] = [note for note in plan.notes if code_of(note) == "depth-not-scaled"]
    assert times in note


def test_the_factor_of_a_tied_readout_is_shown_once():
    """It is in the norm before the readout; no hook multiplies."""
    plan = o1.plan(tied_gpt2(), base={"n_embd": 16, "n_head": 1}, lr=1e-3)
    table = plan["transformer.wte.weight"]
    assert table.multiplier == pytest.approx(0.25)
    assert table.hook_multiplier == 1
    assert plan["transformer.ln_f.weight"].constant == pytest.approx(0.25)
    assert plan.multipliers == ()
    assert set(mult_cells(plan).values()) == {"1"}
    assert "transformer.ln_f.weight" in table.reason
    assert "transformer.wte.weight" in plan["transformer.ln_f.weight"].reason


def test_a_multiplier_in_a_hook_is_shown():
    plan = o1.plan(mlp(32), base=mlp(8), lr=1e-3, gauge="paper")
    hooked = {multiplier.module: multiplier.value for multiplier in plan.multipliers}
    assert hooked
    for row in plan.rows:
        module = row.name.removesuffix(".weight")
        assert row.hook_multiplier == pytest.approx(hooked.get(module, 1.0))


def test_a_saved_plan_shows_the_same_factors(tmp_path):
    plan = o1.plan(tied_gpt2(), base={"n_embd": 16, "n_head": 1}, lr=1e-3)
    plan.save(tmp_path / "plan.json")
    assert mult_cells(o1.Plan.load(tmp_path / "plan.json")) == mult_cells(plan)


def test_tensors_that_are_set_to_zero_are_not_counted_as_drawn():
    model = tied_gpt2()
    plan = o1.plan(model, base={"n_embd": 16, "n_head": 1}, lr=1e-3, init="zero-residual")
    counts = start_counts(plan.rows)
    assert sum((counts.drawn, counts.constant, counts.kept)) == len(plan.rows)
    # two tables, c_attn and c_fc of two layers; weight and bias of two c_proj in each layer
    assert (counts.drawn, counts.constant) == (6, 8)
    plan.apply()
    zeroed = [row for row in plan.rows if row.draw is not None and row.constant == 0]
    assert len(zeroed) == counts.constant
    tensors = dict(model.named_parameters())
    assert not any(torch.any(tensors[row.name]) for row in zeroed)
    kept = o1.plan(tied_gpt2(), base={"n_embd": 16, "n_head": 1}, lr=1e-3)
    assert start_counts(kept.rows) == StartCounts(0, 0, len(kept.rows))


def test_the_learning_rate_of_a_partial_counts_and_that_of_an_instance_does_not():
    model = mlp(32)
    with_rate = o1.plan(model, base=mlp(8), optimizer=partial(torch.optim.AdamW, lr=5e-3))
    assert with_rate.settings.lr == 5e-3
    assert "default-lr" not in codes(with_rate)
    instance = torch.optim.AdamW(model.parameters(), lr=5e-3)
    plan = o1.plan(model, base=mlp(8), optimizer=instance)  # pyright: ignore[reportArgumentType]
    assert plan.settings.lr == 1e-3
    assert "default-lr" in codes(plan)


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("c_attn", "'*c_attn*'"),
        ("c_attn.weight", "'*.c_attn.weight'"),
        ("embeding", "'embedding'"),
        ("lm_head.weight", "transformer.wte.weight"),
    ],
)
def test_a_key_that_fits_no_tensor_comes_with_a_suggestion(key, suggested):
    lr = {"default": 1e-3, key: 1e-2}
    with refuses("unknown-name", argument="lr") as caught:
        o1.plan(tied_gpt2(), base={"n_embd": 16}, lr=lr)
    assert suggested in str(caught.value)


@pytest.mark.parametrize(
    ("key", "suggested"), [("n_emb", "'n_embd'"), ("hiden_size", "'hidden_size'")]
)
def test_a_misspelt_size_of_the_base_comes_with_a_suggestion(key, suggested):
    with refuses("unknown-name", argument="base") as caught:
        o1.plan(tied_gpt2(), base={key: 16}, lr=1e-3)
    assert suggested in str(caught.value)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (GPT2LMHeadModel, "GPT2LMHeadModel(...)"),
        (GPT2Config(), "from_config"),
        ("gpt2", "not its name"),
        (mlp, "call the function"),
        ((mlp(8), None), "first entry"),
    ],
)
def test_what_is_no_model_is_refused_with_the_way_to_one(model, remedy):
    with refuses("wrong-type", argument="model") as caught:
        o1.plan(model, base={"n_embd": 16}, lr=1e-3)
    assert remedy in str(caught.value)


def test_settings_of_an_optimizer_instance_are_not_dropped_in_silence():
    model = mlp(32)
    tuned = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.9), weight_decay=0.3)
    plan = o1.plan(model, base=mlp(8), optimizer=tuned, lr=1e-3)  # type: ignore[arg-type]
    [note] = [note for note in plan.notes if code_of(note) == "optimizer-instance"]
    assert "betas=(0.8, 0.9)" in note
    assert "weight_decay=0.3" in note
    usual = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.3)
    plan = o1.plan(model, base=mlp(8), optimizer=usual, lr=1e-3, weight_decay=0.3)  # type: ignore[arg-type]
    assert "optimizer-instance" not in codes(plan)
