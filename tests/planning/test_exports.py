"""Plans in the formats of other trainers: every tensor gets its value, and nothing else matches."""

import json
import re
from fnmatch import fnmatchcase
from functools import partial

import pytest
import torch
from support import planned_models
from support.errors import refuses
from support.named import Named
from torch import nn

import orderone as o1
from orderone.planning.exports import names as tables
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


def test_smallest_learning_rates_that_would_do_nothing_are_refused():
    plan = planned_models.plan("llama")  # its learning rate is 3e-3
    for min_lr in (-1e-4, 1e-2, float("nan")):
        with refuses("invalid-argument", argument="min_lr"):
            plan.export("megatron", min_lr=min_lr)
    for target in FORMATS:
        if target != "megatron":
            with refuses("invalid-argument", argument="min_lr"):
                plan.export(target, allow_loss="eps", min_lr=1e-4)


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


def test_no_name_matches_two_patterns():
    """A star also matches dots, so that those of one group can overlap, as in BERT."""
    names = [f"layer.{n}.{part}dense.bias" for n in (0, 1) for part in ("output.", "a.output.")]
    patterns = globs(names, names)
    for name in names:
        assert sum(fnmatchcase(name, pattern) for pattern in patterns) == 1


def test_a_pattern_that_matches_another_tensor_is_refused():
    """The trainer's model has a tensor that the plan does not have."""
    plan = planned_models.plan("llama")
    for target in ("megatron", "olmo-core"):
        export = plan.export(target)
        model = Named(export.names)
        export._must_match(model)
        export._must_match(Named(f"module.{name}" for name in export.names))
        layer = next(name for name in export.names if ".0." in name)
        other = Named([*export.names, layer.replace(".0.", ".0.inner.")])
        with refuses("invalid-argument", argument="model"):
            export._must_match(other)


ODD_NAMES = {
    "characters of patterns": [
        "a+b",
        "a*",
        "axb",
        "a[0]",
        "(a|b)",
        "^x$",
        r"w\d+",
        "{0}",
        "{}",
        "l{}",
    ],
    "prefixes": ["w", "w1", "w10", "w100", "weight", "weight1", "weight10"],
    "numbers": ["0", "1", "01", "10", "x0", "\uff10", "\u00b2"],
    "quotes": ["a'b", 'a"b', "a\\b", "#c", ": d", "- e", "a\n", "a", "A", "é"],
    "underscores": ["0", "1", "_a", "_0"],
}


class OddNames(nn.Module):
    """Tensors with other settings for every second module, and a frozen one."""

    def __init__(self, names, width):
        super().__init__()
        self.names = names
        self.first = nn.Linear(8, width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        for name in names:
            self.add_module(name, nn.Linear(width, width))
            self.get_submodule(name).register_parameter("weight\n", nn.Parameter(torch.ones(width)))

    def forward(self, x):
        x = self.frozen(self.first(x))
        for name in self.names:
            module = self.get_submodule(name)
            x = torch.tanh(module(x)) * module.get_parameter("weight\n")
        return x


@pytest.mark.parametrize("kind", ODD_NAMES)
def test_odd_names_match_exactly(kind):
    """Whatever a module is called, a pattern matches its own tensors and no others."""
    names = ODD_NAMES[kind]
    lr = {"default": 1e-3}
    for number, name in enumerate(names[::2]):
        lr[re.sub(r"([*?[])", r"[\1]", f"{name}.weight")] = 1e-3 * (number + 2)
    model = OddNames(names, 16)
    plan = o1.plan(model, base=OddNames(names, 8), lr=lr, inputs=torch.ones(2, 8))
    trained = {row.name for row in plan.rows if row.trained}
    for target in FORMATS:
        export = plan.export(target, allow_loss="eps", names="as-is")
        found = export.settings()
        expected = set(export.names) if target == "nemo" else trained  # it has a default for all
        assert set(found) == expected
        for name in trained:
            assert found[name].lr == pytest.approx(plan[name].lr, rel=1e-15)
        for entry in export.init:
            for row in plan.rows:
                if re.search(entry["pattern"], row.name):
                    assert row.init_std == entry["init_std"]


def test_patterns_match_names_inside_wrappers():
    """torchtitan and Megatron match names with what wrappers add to them."""
    names = ["layers.0.q.weight", "layers.1.q.weight", "layers.0.k.weight", "norm.weight"]
    for wanted in (names[:2], names[:1], names[2:]):
        pattern = regex(wanted, names, wrapped=True)
        for name in names:
            inside = re.sub(r"(layers\.\d)", r"\1._checkpoint_wrapped_module", name)
            assert bool(re.search(pattern, inside)) == (name in wanted)
            assert bool(re.search(pattern, name)) == (name in wanted)
    private = ["layers.0.weight", "layers.0._extra.weight"]
    assert re.search(regex(private[:1], private, wrapped=True), private[1]) is None
    plan = planned_models.plan("llama")
    export = plan.export("megatron")
    for prefix in ("module.", "module.module."):
        found = export.settings([prefix + name for name in export.names])
        assert {name.removeprefix(prefix): v for name, v in found.items()} == export.settings()
    layer = plan.export("huggingface")
    wrapped = nn.DataParallel(planned_models.model("llama"))
    assert len(layer.build(wrapped)) == len(plan.param_groups())  # pyright: ignore[reportArgumentType]


# parts in front of all names: DDP, DDP of a compiled model, a compiled DDP
OUTER = ["module.", "module._orig_mod.", "_orig_mod.module."]


@pytest.mark.parametrize("target", ["torchtitan", "megatron", "nemo", "olmo-core"])
@pytest.mark.parametrize("name", planned_models.NAMES)
def test_patterns_match_names_behind_what_wrappers_add(name, target):
    """NeMo's DDP and compilation, and the DDP of OLMo-core: no error, but other settings."""
    names = "as-is" if target == "olmo-core" and name == "gpt2" else None
    export = planned_models.plan(name).export(target, allow_loss="eps", names=names)
    for outer in OUTER if target != "megatron" else ["module.", "module.module."]:
        found = export.settings([outer + name for name in export.names])
        assert {name.removeprefix(outer): v for name, v in found.items()} == export.settings()
        export._must_match(Named(outer + name for name in export.names))


def test_parts_in_front_are_not_confused_with_modules_of_the_model():
    names = ["module.a.weight", "a.weight", "_b.weight", "b.weight"]
    for wanted in ([name] for name in names):
        pattern = regex(wanted, names, wrapped=True)
        assert [name for name in names if re.search(pattern, name)] == wanted
        starred = globs(wanted, names, anywhere=True)
        assert [name for name in names if fnmatchcase(name, starred[0])] == wanted


def test_a_model_whose_names_get_default_settings_is_refused():
    """NeMo logs a pattern that matches nothing, and trains with the settings of the optimizer."""
    export = planned_models.plan("llama").export("nemo", allow_loss="eps")
    with refuses("invalid-argument", argument="model"):
        export._must_match(Named(f"other.{name}" for name in export.names))


def test_numbers_of_layers_in_patterns_have_a_note_where_stages_count_them():
    settings = {"default": 3e-3, "model.layers.0.mlp.*": 1e-3}
    plan = o1.plan(planned_models.model("llama"), base=planned_models.BASE, lr=settings)
    common = len(planned_models.plan("llama").export("megatron").notes)
    assert len(plan.export("megatron").notes) == common + 1
    assert len(plan.export("torchtitan").notes) == common


def _of_class(optimizer, **options):
    def build(width):
        return nn.Sequential(nn.Linear(8, width), nn.Linear(width, 2))

    return o1.plan(build(32), base=build(8), optimizer=optimizer, lr=0.1, **options)


class OwnAdamW(torch.optim.AdamW):
    pass


def test_options_and_classes_are_exported_or_refused():
    momentum = _of_class(partial(torch.optim.SGD, momentum=0.5))
    assert momentum.export("megatron", names="as-is").data["sgd_momentum"] == 0.5
    assert momentum.export("nemo").data["optimizer"]["momentum"] == 0.5
    assert momentum.export("deepspeed").data["optimizer"]["params"]["momentum"] == 0.5
    assert momentum.export("json").data["options"] == {"momentum": 0.5}
    plain = _of_class("sgd").export("megatron", names="as-is")
    assert plain.data["sgd_momentum"] == 0  # not its default
    amsgrad = _of_class(partial(torch.optim.AdamW, amsgrad=True))
    for entry in amsgrad.export("torchtitan").data["param_groups"]:
        assert entry["optimizer_kwargs"]["amsgrad"]
    for target in ("megatron", "olmo-core", "deepspeed"):
        with refuses("export-loss", argument="target"):
            amsgrad.export(target, allow_loss="eps", names="as-is")
        amsgrad.export(target, allow_loss=("eps", "options"), names="as-is")
    for target in FORMATS:
        if target not in ("json", "yaml"):
            with refuses("export-loss", argument="target"):
                _of_class(OwnAdamW).export(target, allow_loss="eps", names="as-is")
    assert "OwnAdamW" in _of_class(OwnAdamW).export("json").data["class"]


def test_a_plan_from_a_file_has_lost_the_options(tmp_path):
    plan = _of_class(partial(torch.optim.AdamW, betas=(0.9, 0.95)))
    assert plan.export("torchtitan")
    plan.save(tmp_path / "plan.json")
    with refuses("export-loss", argument="target"):
        o1.Plan.load(tmp_path / "plan.json").export("torchtitan")


@pytest.mark.parametrize(("optimizer", "decoupled"), [("adam", False), ("adamw", None)])
def test_adam_of_deepspeed_does_not_decouple_weight_decay(optimizer, decoupled):
    export = _of_class(optimizer, weight_decay=0.1).export("deepspeed")
    assert export.data["optimizer"]["params"].get("adam_w_mode") == decoupled


def test_lion_of_deepspeed_has_the_betas_of_the_plan():
    """Those of its own Lion are 0.9 and 0.999."""
    export = _of_class("lion").export("deepspeed", allow_loss="eps")
    (betas,) = {group["betas"] for group in _of_class("lion").optimizer().param_groups}
    assert export.data["optimizer"]["params"]["betas"] == list(betas)


def test_pairs_of_eps_that_differ_are_a_loss():
    plan = _of_class("adafactor", rule="neural-tangent")
    assert len({row.eps for row in plan.rows}) > 1
    export = plan.export("nemo", allow_loss=("eps", "optimizer"))
    assert any(note.startswith("left out: eps") for note in export.notes)


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


def test_a_schedule_must_multiply_all_groups():
    """A function of the largest learning rate, or a scheduler of torch."""
    plan = planned_models.plan("llama")
    export = plan.export("json")
    export.check_schedule(lambda peak, step, steps: peak * (1 - 0.9 * step / steps), steps=20)
    with refuses("broken-ratios", argument="schedule"):
        export.check_schedule(lambda peak, step, steps: max(peak * 0.5**step, 1e-4), steps=20)
    optimizer = plan.optimizer()
    halves = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    export.check_schedule(halves, steps=20)
    floor = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=1e-4)
    with refuses("broken-ratios", argument="schedule"):
        export.check_schedule(floor, steps=20)
    low = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, eta_min=1e-7)
    with refuses("broken-ratios", argument="schedule") as caught:
        export.check_schedule(low, steps=100)
    ratios = re.findall(r"\(ratio ([^)]*)\)", str(caught.value))
    assert ratios[0] != ratios[1]
    with refuses("wrong-type", argument="schedule"):
        export.check_schedule(object())


EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
DEEPSEEK = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
OTHER_MODELS = {
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {"head_dim": 16}),
    "Olmo2ForCausalLM": ("Olmo2Config", {}),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", EXPERTS | {"head_dim": 16}),
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", DEEPSEEK),
}


def other_plan(name: str, **options: object) -> o1.Plan:
    import transformers

    config_name, more = OTHER_MODELS[name]
    sizes = planned_models.SIZES | {"pad_token_id": 0} | more
    config = getattr(transformers, config_name)(**sizes)
    base = dict(planned_models.BASE)
    if name.startswith("Deepseek"):
        base["num_key_value_heads"] = base["num_attention_heads"]
    settings = {"lr": 3e-3, "weight_decay": 0.1, **options}
    model = getattr(transformers, name)(config)
    return o1.plan(model, base=base, **settings)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_models_without_documented_names(name):
    """Every tensor gets its values under the names of the export, experts as 3-D tensors too; if
    the names are those of the model, a note says so; Megatron and OLMo-core need `names`.
    """
    plan = other_plan(name)
    losses = tuple(LOSSES)
    for target in FORMATS:
        documented = name == "Qwen3MoeForCausalLM" or target not in tables.SILENT
        if target == "olmo-core":
            documented = name != "DeepseekV3ForCausalLM"  # most tensors are those of a Llama
        if not documented:
            with refuses("export-names", argument="names"):
                plan.export(target, allow_loss=losses)
        names = None if documented else "as-is"
        export = plan.export(target, allow_loss=losses, names=names)
        expected = content(plan, target, names)
        found = export.settings()
        assert set(found) == set(expected.names)
        for group in expected.groups:
            for tensor in group.names:
                assert found[tensor].lr == pytest.approx(group.lr, rel=1e-15)
                assert found[tensor].weight_decay == pytest.approx(group.weight_decay, rel=1e-15)
        has_own_names = set(expected.names) == {row.name for row in plan.rows}
        renames = target == "torchtitan"
        assert any("names=" in note for note in export.notes) == (has_own_names and renames)


@pytest.mark.parametrize("name", ["Qwen3MoeForCausalLM", "Gemma3ForCausalLM"])
def test_muon_with_adamw_is_written_or_refused(name):
    plan = other_plan(name, lr={"muon": 2e-2, "adamw": 3e-3}, optimizer="muon")
    assert {row.optimizer for row in plan.rows} == {"muon", "adamw"}
    for target in FORMATS:
        if target in ("json", "yaml"):
            groups = plan.export(target).data["groups"]
            assert {group["optimizer"] for group in groups} == {"muon", "adamw"}
            continue
        with refuses("export-loss", argument="target"):
            plan.export(target, allow_loss=("eps", "multipliers", "rows"), names="as-is")
