"""Plans in the formats of other trainers: every tensor gets its value, and nothing else matches."""

import json
import re

import pytest
import torch
from support import planned_models
from support.errors import refuses
from torch import nn

import orderone as o1
from orderone.planning.exports.content import content
from orderone.planning.exports.export import FORMATS
from orderone.planning.exports.patterns import globs, regex
from orderone.planning.exports.yaml_text import yaml_text

LOSSES = ("eps", "multipliers")


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("name", planned_models.NAMES)
def test_every_tensor_gets_the_values_of_the_plan(name, target):
    plan = planned_models.plan(name)
    export = plan.export(target, allow_loss=LOSSES)
    expected = content(plan, target, None)
    found = export.settings()
    assert set(found) == set(export.names) == set(expected.names)
    holds_eps = "eps" in FORMATS[target].holds
    for group in expected.groups:
        for tensor in group.names:
            assert found[tensor].lr == pytest.approx(group.lr, rel=1e-15)
            assert found[tensor].weight_decay == pytest.approx(group.weight_decay, rel=1e-15)
            if holds_eps:
                assert found[tensor].eps == group.eps


def test_documented_names_keep_every_tensor_of_the_plan():
    plan = planned_models.plan("llama")
    for target in ("torchtitan", "olmo-core"):
        made = content(plan, target, None)
        assert len(made.names) == len(plan.rows)
        assert not set(made.names) & {row.name for row in plan.rows} - {"lm_head.weight"}
        assert not made.notes


def test_unknown_models_keep_their_names_with_a_note():
    made = content(planned_models.plan("gpt2"), "torchtitan", None)
    assert "transformer.wte.weight" in made.names
    assert len(made.notes) == 1


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
    assert plan.export("torchtitan")


def test_what_a_format_cannot_hold_is_refused():
    plan = planned_models.plan("llama")
    with refuses("export-loss", argument="target"):
        plan.export("nemo")
    export = plan.export("nemo", allow_loss="eps")
    assert any("eps" in note for note in export.notes)
    muon = o1.plan(planned_models.model("llama"), base=planned_models.BASE, optimizer="muon", lr=1)
    with refuses("export-loss", argument="target"):
        muon.export("torchtitan")
    with refuses("invalid-argument", argument="allow_loss"):
        plan.export("nemo", allow_loss=("speed",))
    with refuses("invalid-argument", argument="target"):
        plan.export("keras")


def test_factors_of_the_forward_pass_are_refused_or_written_down():
    model = planned_models.model("gpt2")
    plan = o1.plan(model, base={"n_embd": 32, "n_head": 2}, lr=1e-3, gauge="unit")
    assert plan.multipliers
    with refuses("export-loss", argument="target"):
        plan.export("torchtitan")
    written = plan.export("json").data["multipliers"]
    assert [m["value"] for m in written] == [m.value for m in plan.multipliers]


def test_smallest_learning_rates_keep_the_ratios():
    overrides = planned_models.plan("llama").export("megatron", min_lr=3e-4).data
    for entry in overrides["config_overrides"]:
        assert entry["min_lr"] == pytest.approx(entry["max_lr"] / 10)


def test_as_few_patterns_as_groups():
    plan = planned_models.plan("llama")
    groups = len(plan.param_groups())
    assert len(plan.export("torchtitan").data["param_groups"]) == groups
    assert len(plan.export("json").data["groups"]) == groups


def test_initial_sizes_are_those_of_the_plan():
    plan = planned_models.plan("mixtral")
    for entry in plan.export("huggingface").init:
        for row in plan.rows:
            if re.search(entry["pattern"], row.name):
                assert row.init_std == entry["init_std"]


@pytest.mark.parametrize("target", ["deepspeed", "huggingface"])
def test_groups_of_torch_train_like_the_plan(target):
    plan = planned_models.plan("llama")
    groups = plan.export(target).build(plan.model)
    assert isinstance(groups, list)
    optimizer = torch.optim.AdamW(groups)
    expected = {p: group for group in plan.param_groups() for p in group["params"]}
    for group in optimizer.param_groups:
        for p in group["params"]:
            for setting in ("lr", "weight_decay", "eps"):
                assert group[setting] == expected[p][setting]
    with refuses("invalid-argument", argument="model"):
        plan.export(target).build(nn.Linear(2, 2))
    with refuses("invalid-argument", argument="model"):
        plan.export(target).build()


def test_text_is_read_back(tmp_path):
    plan = planned_models.plan("llama")
    path = tmp_path / "plan.json"
    export = plan.export("json")
    export.save(path)
    assert json.loads(path.read_text()) == export.data
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(str(plan.export("yaml"))) == plan.export("yaml").data
    assert yaml.safe_load(str(plan.export("nemo", allow_loss="eps")))
    namespace: dict[str, object] = {"ParamGroupConfig": dict}
    exec(f"made = dict({plan.export('torchtitan')})", namespace)
    assert namespace["made"] == plan.export("torchtitan").data


def test_patterns_match_no_other_name():
    names = ["layers.0.q.weight", "layers.1.q.weight", "layers.10.q.weight", "layers.0.q.weights"]
    assert regex(names[:3], names) == r"^layers\.\d+\.q\.weight$"
    assert re.search(regex(names[:2], names), names[2]) is None
    assert globs(names[:3], names) == ["layers.*.q.weight"]
    assert globs(names[:2], names) == names[:2]
    nested = [*names[:3], "layers.0.inner.q.weight"]
    assert globs(names[:3], nested) == names[:3]  # the star would match the inner layer too
    assert globs(["a[0].weight"], ["a[0].weight"]) == ["a[[]0].weight"]


def test_numbers_in_yaml():
    yaml = pytest.importorskip("yaml")
    data = {
        "a": 1e-05,
        "b": 1.5e-9,
        "c": [1, 2.0],
        "d": None,
        "e": [],
        "f": [{"g": "x: y", "h": 1}],
    }
    assert yaml.safe_load(yaml_text(data)) == data
