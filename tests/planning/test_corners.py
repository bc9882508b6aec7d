"""Cases in which a plan was once silently wrong."""

import copy
from typing import Any

import pytest
import torch
from support.errors import refuses
from support.zoo import ZOO
from test_plan import rms
from test_roles import Language, mlp
from torch import nn
from torch.nn import functional

import orderone as o1
from orderone import rules
from orderone.core.errors import code_of
from orderone.planning.initial import BLOCK, Initial, measure


class Residual(nn.Module):
    """Blocks with numbered parts, as in much user code."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.first, self.head = nn.Linear(8, width), nn.Linear(width, 3)
        parts = [
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(layers)
        ]
        self.blocks = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_only_the_last_matrix_of_a_numbered_branch_takes_its_factor():
    plan = o1.plan(
        Residual(64, 8), base=Residual(64, 2), depth="completep", inputs=torch.randn(4, 8)
    )
    assert plan["blocks.0.0.weight"].factors.std == 1
    assert plan["blocks.7.2.weight"].factors.std == 0.25
    assert plan["first.weight"].factors.std == plan["head.weight"].factors.std == 1


@pytest.mark.parametrize("name", ["gemma2", "llama", "gpt2", "bert", "opt", "bart"])
def test_residual_branches_of_a_deeper_model_change_the_stream_as_in_the_base(name):
    """The sum of all branches does not grow with depth, before and after training."""
    entry = ZOO[name]
    torch.manual_seed(0)
    changes = []
    for layers in (2, 8):
        model = entry.build(64, layers=layers)
        plan = o1.plan(
            model, base=entry.build(64, layers=2), depth="completep", lr=1e-3, weight_decay=0.0
        )
        plan.apply()
        losses = entry.train(model, plan.optimizer())
        changes.append(losses[0] - losses[-1])
    assert changes[1] == pytest.approx(changes[0], rel=0.35)


def test_a_gain_stored_as_an_offset_gets_a_hook_in_depth():
    entry = ZOO["gemma2"]
    plan = o1.plan(entry.build(64, layers=6), base=entry.build(64, layers=2), depth="completep")
    hooked = {m.module: m.value for m in plan.multipliers if m.side == "output"}
    assert all(value == pytest.approx(1 / 3) for value in hooked.values())
    assert len(hooked) == 12


def test_more_experts_do_not_count_as_depth():
    class Experts(nn.Module):
        def __init__(self, experts: int):
            super().__init__()
            layer = {"experts": nn.ModuleList(nn.Linear(16, 16) for _ in range(experts))}
            self.layers = nn.ModuleList([nn.ModuleDict(layer)])

    plan = o1.plan(Experts(8), base=Experts(4), expert_rule=None)
    assert {row.depth for row in plan.rows} == {1.0}


def test_layers_of_a_deeper_sequential_have_the_same_roles():
    plan = o1.plan(mlp(256, depth=4), base=mlp(64, depth=2), lr=1.0)
    assert [row.role for row in plan.rows if row.name.endswith("weight")] == [
        "embedding",
        *["hidden"] * 4,
        "readout",
    ]
    with refuses("other-architecture", argument="base") as caught:
        o1.plan(
            nn.Sequential(nn.Linear(8, 64)),
            base=nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.PReLU(64), Language(8)),
        )
    assert "the model has no counterpart" in str(caught.value)


@pytest.mark.parametrize(("rule", "factor"), [(None, 0.5), ("sqrt", 0.5), ("completep", 0.25)])
def test_a_rule_for_depth_replaces_the_initial_size_that_depends_on_depth(rule, factor):
    """GPT-2 divides some initial sizes by the root of the number of layers."""
    entry = ZOO["gpt2"]
    model = entry.build(64, layers=8)
    plan = o1.plan(model, base=entry.build(64, layers=2), depth=rule)
    plan.apply()
    row = plan["transformer.h.7.mlp.c_proj.weight"]
    assert rms(model.get_parameter(row.name)) == pytest.approx(row.init_std)
    assert row.init_std == pytest.approx(0.01 * factor, rel=0.05)


def test_a_different_number_of_shared_layers_is_a_difference():
    entry = ZOO["albert"]
    plan = o1.plan(entry.build(64, layers=6), base=entry.build(64, layers=2), probe=False)
    assert "differ in num_hidden_layers" in plan.headline


def test_frozen_weights_are_not_touched():
    model = mlp(256)
    model.get_parameter("2.weight").requires_grad_(False).mul_(7)
    before = model.get_parameter("2.weight").clone()
    plan = o1.plan(model, base=mlp(64))
    plan.apply()
    assert torch.equal(model.get_parameter("2.weight"), before)
    assert plan["2.weight"].init_std == pytest.approx(rms(before))


def test_a_trained_base_is_refused():
    entry = ZOO["llama"]
    base = entry.build(64)
    nn.init.normal_(base.get_parameter("model.norm.weight"), mean=1, std=0.1)
    with refuses("base-was-trained", argument="base") as caught:
        o1.plan(entry.build(128), base=base)
    assert "model.norm.weight" in str(caught.value)


def test_a_constant_counts_once_however_often_its_tensor_is_used():
    class Twice(Language):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            scale = self.word.embedding_dim**0.5
            return self.head(self.norm(self.word(ids) * scale + self.word(ids.flip(1)) * scale))

    plan = o1.plan(Twice(256), base=Twice(64), inputs=torch.zeros(2, 4, dtype=torch.long))
    assert plan["word.weight"].factors.std == pytest.approx(0.5)


def test_a_constant_belongs_to_the_layer_it_follows():
    class Divide(nn.Module):
        def __init__(self, by: float):
            super().__init__()
            self.by = by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / self.by

    def build(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, width),
            nn.Linear(width, width),
            Divide(width**0.5),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Linear(width, 3),
        )

    plan = o1.plan(build(256), base=build(64), inputs=torch.randn(4, 8))
    assert plan["1.weight"].factors.std == pytest.approx(1.0)
    assert plan["4.weight"].factors.std == pytest.approx(0.5)


def test_derived_values_of_a_configuration_are_derived_again_for_the_base():
    from transformers import FalconConfig, FalconForCausalLM, LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "vocab_size": 101,
    }
    plan = o1.plan(
        LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2)),
        base={"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2},
    )
    row = plan["model.layers.0.self_attn.k_proj.weight"]
    assert (row.role, row.base_shape) == ("hidden", (64, 64))
    falcon = FalconForCausalLM(
        FalconConfig(hidden_size=128, num_attention_heads=8, num_hidden_layers=2, vocab_size=101)
    )
    assert (
        "64 -> 128" in o1.plan(falcon, base={"hidden_size": 64, "num_attention_heads": 4}).headline
    )


def test_a_base_with_inconsistent_sizes_is_refused():
    """Four query heads cannot share eight key heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 16,
    }
    model = LlamaForCausalLM(
        LlamaConfig(**sizes, num_key_value_heads=8, num_hidden_layers=2, vocab_size=101)
    )
    with refuses("inconsistent-sizes", argument="base"):
        o1.plan(model, base={"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4})


def test_keys_and_values_may_grow_by_another_ratio():
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(width: int, heads: int, keys: int) -> nn.Module:
        sizes: dict[str, Any] = {
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "head_dim": 16,
            "vocab_size": 101,
        }
        sizes |= {"num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": keys}
        return LlamaForCausalLM(LlamaConfig(**sizes))

    row = o1.plan(build(256, 16, 8), base=build(64, 4, 1))["model.layers.0.self_attn.k_proj.weight"]
    # the widths of the queries; two of them share a key instead of four
    assert (row.role, row.growth.fan_in, row.growth.fan_out) == ("hidden", 4, 4)
    assert "shared by 2 queries (base: 4)" in row.reason


def test_experts_that_begin_in_a_later_layer_are_found():
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    def build(width: int) -> nn.Module:
        sizes: dict[str, Any] = dict.fromkeys(("hidden_size", "moe_intermediate_size"), width)
        sizes |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), width // 16)
        sizes |= dict.fromkeys(("kv_lora_rank", "q_lora_rank"), width // 2)
        sizes |= dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8)
        sizes |= {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "v_head_dim": 16,
        }
        sizes |= {
            "intermediate_size": 2 * width,
            "num_hidden_layers": 5,
            "first_k_dense_replace": 3,
            "vocab_size": 101,
        }
        config = DeepseekV3Config(**sizes)
        return DeepseekV3ForCausalLM(config)

    plan = o1.plan(build(128), base=build(64))
    assert plan["model.layers.4.mlp.gate.weight"].role == "readout"


def test_a_number_of_experts_is_not_a_width_even_if_it_grows_like_one():
    from transformers import MixtralConfig, MixtralForCausalLM

    def build(width: int, experts: int) -> nn.Module:
        sizes: dict[str, Any] = {
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "vocab_size": 101,
        }
        sizes |= {
            "num_attention_heads": width // 16,
            "num_key_value_heads": width // 32,
            "num_hidden_layers": 2,
        }
        return MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=experts))

    assert (
        o1.plan(build(128, 8), base=build(64, 4))["model.layers.0.mlp.gate.weight"].role
        == "readout"
    )
    assert "differ in experts" in o1.plan(build(64, 8), base=build(64, 4)).headline


def test_multipliers_set_by_hand_are_noted():
    entry = ZOO["granite"]
    model, base = entry.build(256), entry.build(64)
    model.config.logits_scaling = 4.0  # type: ignore[union-attr]
    [note] = o1.plan(model, base=base, lr=1e-3).notes
    assert code_of(note) == "other-settings-differ"
    assert "logits_scaling" in note


def test_a_matrix_used_transposed_as_the_readout_is_tied():
    class Autoencoder(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.into, self.body = nn.Linear(8, width), nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.linear(self.body(self.into(x).relu()).relu(), self.into.weight.t())

    plan = o1.plan(Autoencoder(256), base=Autoencoder(64), inputs=torch.randn(4, 8))
    assert plan["into.weight"].multiplier == pytest.approx(0.25)
    [note] = [note for note in plan.notes if code_of(note) == "tied-readout-in-code"]
    assert "by 0.25 " in note
    assert not plan.multipliers


def test_an_unused_tensor_is_not_ambiguous():
    class Unused(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.into, self.extra = nn.Linear(8, width), nn.Parameter(torch.zeros(4, width))
            self.out = nn.Linear(width, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.into(x))

    with pytest.raises(o1.AmbiguousRole):
        o1.plan(Unused(256), base=Unused(64))
    assert o1.plan(Unused(256), base=Unused(64), inputs=torch.randn(4, 8))["extra"].role == "vector"


def test_bilinear_sums_over_both_of_its_inputs():
    class Pair(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.into, self.pair = nn.Linear(8, width), nn.Bilinear(width, width, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.pair(self.into(x), self.into(x))

    for inputs in (None, torch.randn(4, 8)):
        row = o1.plan(Pair(256), base=Pair(64), inputs=inputs)["pair.weight"]
        assert (row.role, row.growth.fan_in) == ("readout", 16)


def test_a_custom_rule_that_equals_mup_divides_scores_as_mup_does():
    entry = ZOO["llama-wider-heads"]
    mine = rules.custom("mine", a=(0, 0, 0), b=(0, "1/2", 1))
    name = "model.layers.0.self_attn.q_proj.weight"
    plans = [
        o1.plan(entry.build(256), base=entry.build(64), rule=rule, lr=1.0) for rule in (mine, "mup")
    ]
    assert plans[0][name].lr == plans[1][name].lr == pytest.approx(1 / 8)


def test_an_applied_plan_does_not_continue_as_another(tmp_path):
    plan = o1.plan(mlp(256), base=mlp(64))
    plan.apply()
    plan.save(tmp_path / "plan.json")
    with refuses("already-applied", argument="base"):
        o1.plan(mlp(256), base=tmp_path / "plan.json", rule="sp")


def test_a_single_pattern_may_be_a_string():
    plan = o1.plan(mlp(256), base=mlp(64), weight_decay=0.1, no_decay="*.bias")
    assert {row.weight_decay == 0 for row in plan.rows if row.name.endswith("bias")} == {True}
    assert plan["2.weight"].weight_decay > 0
    with refuses("unknown-name", argument="no_decay") as caught:
        o1.plan(mlp(256), base=mlp(64), no_decay=["nope"])
    assert "'nope'" in str(caught.value)


def test_eps_of_muon_is_compared_with_a_norm():
    row = o1.plan(mlp(256), base=mlp(64), optimizer="muon")["2.weight"]
    assert row.eps == pytest.approx(1e-7)


def test_a_run_long_enough_for_adafactor_to_break_the_ratios_is_refused():
    plan = o1.plan(mlp(256), base=mlp(64), optimizer="adafactor", lr=0.1)
    optimizer = plan.optimizer()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    plan.check(optimizer, schedule, steps=50)
    with refuses("broken-ratios", argument="lr") as caught:
        plan.check(optimizer, schedule, steps=500)
    assert isinstance(caught.value, o1.BrokenRatios)


def test_a_schedule_that_cannot_be_simulated_is_refused():
    plan = o1.plan(mlp(256), base=mlp(64))
    optimizer = plan.optimizer()

    def table(step: int) -> float:
        return [1.0][step]

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, table)
    with refuses("invalid-argument", argument="scheduler"):
        plan.check(optimizer, schedule)


def test_muon_with_adamw_can_be_copied_but_takes_no_new_groups():
    model = Language(128)
    plan = o1.plan(model, base=Language(64), optimizer="muon")
    plan.apply()
    optimizer = plan.optimizer()
    model(torch.zeros(2, 4, dtype=torch.long)).square().mean().backward()
    optimizer.step()
    copy.deepcopy(optimizer).step()
    assert set(optimizer.state_dict()) == {"state", "param_groups"}
    with refuses("invalid-argument", argument="param_group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def test_scalar_empty_complex_and_integer_tensors_can_be_planned():
    class Strange(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.into = nn.Linear(8, width)
            self.empty, self.scale = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.tensor(2.0))
            self.phase = nn.Parameter(torch.ones(width, dtype=torch.cfloat))
            self.count = nn.Parameter(torch.zeros(3, dtype=torch.long), requires_grad=False)

    o1.plan(Strange(256), base=Strange(64)).apply()
    with refuses("invalid-argument", argument="model") as caught:
        o1.plan(nn.Sequential(nn.LazyLinear(8)), base=nn.Sequential(nn.LazyLinear(4)))
    assert "is lazy" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code", "argument"),
    [
        (
            {"optimizer": "muon", "lr": {"muon": 0.02, "adam": 1e-3}},
            "unknown-name",
            "lr",
        ),
        ({"optimizer": "adafactor", "eps": 1e-3}, "invalid-argument", "eps"),
        ({"overrides": "hidden"}, "wrong-type", "overrides"),
        ({"base": "nowhere.json"}, "not-a-plan-file", "base"),
        ({"base": "absolute", "C": {"hidden": -2.0}}, "invalid-argument", "C[hidden]"),
    ],
)
def test_more_wrong_arguments_are_explained(options, code, argument):
    with refuses(code, argument=argument):
        o1.plan(mlp(128), **({"base": mlp(64)} | options))


def test_the_power_of_the_head_size_is_exact():
    with pytest.raises(ValueError, match="score_power"):
        o1.plan(mlp(128), base=mlp(64), score_power="a")


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bart"])
def test_a_tied_model_trains_the_same_in_every_gauge(name):
    entry = ZOO[name]
    losses = {}
    for gauge in ("folded", "unit", "paper"):
        torch.manual_seed(0)
        model = entry.build(96).double()
        plan = o1.plan(model, base=entry.build(32).double(), gauge=gauge, lr=1e-3, weight_decay=0.1)
        plan.apply()
        losses[gauge] = entry.train(model, plan.optimizer(), steps=5)[-1]
        assert bool(plan.multipliers) or gauge == "folded"
    assert losses["unit"] == pytest.approx(losses["folded"], abs=1e-9)
    assert losses["paper"] == pytest.approx(losses["folded"], abs=1e-9)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    ("optimizer", "lr"),
    [("adamw", 0.5), ("sgd", 0.25)],
    ids=["normalized steps", "proportional steps"],
)
@pytest.mark.parametrize(
    ("normed", "length"),
    [
        (nn.utils.parametrizations.weight_norm, "parametrizations.weight.original0"),
        (nn.utils.weight_norm, "weight_g"),
    ],
    ids=["present", "former"],
)
def test_row_lengths_of_a_readout_scale_with_it(normed, length, optimizer, lr):
    """Weight norm: the lengths of its rows are a separate tensor, of which no dimension grows."""

    def build(width):
        first, hidden, last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 3)
        return nn.Sequential(first, nn.ReLU(), normed(hidden), nn.ReLU(), normed(last))

    torch.manual_seed(0)
    x = torch.randn(4, 8)
    plan = o1.plan(build(256), base=build(64), rule="mup", optimizer=optimizer, inputs=x)
    assert (plan[f"4.{length}"].factors.std, plan[f"4.{length}"].factors.lr) == (0.5, lr)
    assert plan[f"2.{length}"].factors.std == 1  # a hidden matrix keeps the lengths of its rows
    one = o1.plan(build(256), base=build(64), rule="standard", optimizer=optimizer, inputs=x)
    assert {row.factors.lr for row in one.rows} == {1.0}
    plan.apply()
    assert rms(plan.tensors()[f"4.{length}"]) == pytest.approx(plan[f"4.{length}"].init_std)


def test_frozen_row_lengths_are_not_changed():
    def build(width):
        net = nn.Sequential(
            nn.Linear(8, width),
            nn.ReLU(),
            nn.utils.parametrizations.weight_norm(nn.Linear(width, 3)),
        )
        net.get_parameter("2.parametrizations.weight.original0").requires_grad_(False)
        return net

    plan = o1.plan(build(256), base=build(64), inputs=torch.randn(4, 8))
    assert plan["2.parametrizations.weight.original0"].factors.std == 1


def test_initial_sizes_of_large_tensors_are_those_of_all_entries():
    x = 1e3 + torch.randn(7, BLOCK // 3)
    exact = x.double().square().mean().sqrt().item()
    assert measure(x).rms == pytest.approx(exact, rel=1e-12)
    assert measure(x.T).rms == pytest.approx(exact, rel=1e-12)
    one = torch.full((3, BLOCK), 2.0)
    assert measure(one) == Initial(2.0, 2.0)
    one[1, 5] = 3.0  # the first and the last entry are the same
    assert measure(one).constant is None
