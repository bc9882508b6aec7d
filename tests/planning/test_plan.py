"""Plans: numbers, optimizers, files, absolute mode, gauges, errors."""

import copy
import json
import math
import subprocess
import sys

import pandas as pd
import pytest
import torch
from support.errors import refuses
from support.zoo import ZOO
from test_roles import Language, mlp
from torch import nn

import orderone as o1
from orderone import rules, theory
from orderone.core.errors import code_of

OPTIMIZERS = ("sgd", "adam", "adamw", "adafactor", "muon", "lion")


def rms(tensor: torch.Tensor) -> float:
    return tensor.detach().square().mean().sqrt().item()


# --- numbers --------------------------------------------------------------------------------------


def test_initial_sizes_after_apply_are_those_of_the_table():
    torch.manual_seed(0)
    model, base = mlp(512), mlp(64)
    plan = o1.plan(model, base=base)
    plan.apply()
    for row in plan.rows:
        assert rms(dict(model.named_parameters())[row.name]) == pytest.approx(
            row.init_std, rel=1e-5
        ), row.name
    assert plan["6.weight"].init_std == pytest.approx((3 * 64) ** -0.5 / 8)
    assert plan["2.weight"].init_std == pytest.approx((3 * 64) ** -0.5 / 8**0.5)
    assert plan["2.bias"].init_std == pytest.approx((3 * 64) ** -0.5)


def test_a_constant_initial_size_is_scaled_too():
    def build(width: int) -> nn.Module:
        model = mlp(width)
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        return model

    plan = o1.plan(build(1024), base=build(64))
    plan.apply()
    assert plan["2.weight"].init_std == pytest.approx(0.02 / 4, rel=0.02)
    assert plan["2.bias"].init_std == 0
    assert not any(p.any() for name, p in plan.bound().named_parameters() if name.endswith("bias"))


def test_a_readout_that_starts_at_zero_stays_zero():
    model, base = mlp(256), mlp(64)
    for net in (model, base):
        nn.init.zeros_(net.get_parameter("6.weight"))
    o1.plan(model, base=base).apply()
    assert not model.get_parameter("6.weight").any()


def test_rows_frame_and_text_have_the_same_values():
    plan = o1.plan(mlp(256), base=mlp(64), lr=3e-3, weight_decay=0.1)
    frame = plan.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["name"]) == [row.name for row in plan.rows]
    wanted = {
        "role",
        "shape",
        "grows",
        "multiplier",
        "init_std",
        "lr",
        "weight_decay",
        "eps",
        "reason",
    }
    assert wanted <= set(frame)
    text = plan.table(wide=True)
    assert text.splitlines()[0] == plan.headline
    assert "net" not in text
    assert "0.00075" in text
    assert code_of(text.splitlines()[-2]) == "probe-not-run"
    assert "no example batch" in text.splitlines()[-2]
    assert "orderone explain" in text.splitlines()[-1]
    skipped = o1.plan(mlp(256), base=mlp(64), probe=False)
    assert "skipped (probe=False)" in skipped.table(wide=True)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_printed_plan_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    plan = o1.plan(Language(256), base=Language(64))
    lines = str(plan).splitlines()
    assert max(map(len, lines)) <= columns
    for row in plan.rows:
        assert any(line.startswith(row.name) for line in lines)
        assert f"{row.lr:.4g}" in str(plan)
    assert (lines == plan.table(wide=True).splitlines()) == (columns == 200)


@pytest.mark.parametrize("columns", [20, 60, 100])
def test_long_names_are_broken_between_their_words(monkeypatch, columns):
    """40 columns is the narrowest text; every name can be read from its lines."""
    monkeypatch.setenv("COLUMNS", str(columns))
    words = "encoder_of_everything_that_a_generator_of_code_can_think_of"
    nets = [nn.ModuleDict({words: nn.ModuleDict({words: mlp(width)})}) for width in (256, 64)]
    plan = o1.plan(nets[0], base=nets[1])
    lines = str(plan).splitlines()
    assert max(map(len, lines)) <= max(40, columns)
    assert f"{words}.{words}.0.weight:" in "".join(line.strip() for line in lines)
    for row in plan.rows:
        assert f"{row.lr:.4g}" in str(plan)
    assert f"{words}.{words}.0.weight  " in plan.table(wide=True)


def test_a_printed_plan_needs_no_unicode():
    plan = o1.plan(Language(256), base=Language(64))
    assert str(plan).isascii()
    assert repr(plan).isascii()


def test_a_plan_in_a_notebook_is_a_table_and_its_repr_is_short():
    nets = [nn.ModuleDict({"<i>body</i>": mlp(width)}) for width in (256, 64)]
    plan = o1.plan(nets[0], base=nets[1], lr=3e-3)
    html = plan._repr_html_()
    assert html.count("<table>") == 1
    assert html.count("<tr>") == 1 + 6  # a layer in the middle shares the lines of another
    assert "&lt;i&gt;body&lt;/i&gt;.0.weight" in html
    assert "<i>" not in html
    assert ">0.00075<" in html
    assert "color" not in html  # the theme of the notebook decides
    assert "\n" not in repr(plan)
    assert len(repr(plan)) < 200
    assert plan.headline in repr(plan)


# --- optimizers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_trains_and_its_groups_are_the_rows(optimizer):
    torch.manual_seed(0)
    model = Language(128)
    plan = o1.plan(model, base=Language(64), optimizer=optimizer, lr=1e-2)
    plan.apply()
    made = plan.optimizer()
    plan.check(made)
    ids = torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(8):
        made.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        made.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    rates = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert rates[id(parameter)] == plan[name].lr


def test_muon_takes_hidden_matrices_and_adamw_the_rest_at_every_size():
    for width in (64, 256):
        plan = o1.plan(
            Language(width), base=Language(64), optimizer="muon", lr={"muon": 0.02, "adamw": 3e-3}
        )
        assert {row.name for row in plan.rows if row.optimizer == "muon"} == {"body.weight"}
        assert plan["body.weight"].lr == pytest.approx(0.02)
    assert plan["head.weight"].lr == pytest.approx(3e-3 / 4)
    with refuses("invalid-argument", argument="adjust_lr_fn"):
        plan.optimizer(adjust_lr_fn="match_rms_adamw")


def test_muon_with_adamw_is_saved_scheduled_and_resumed():
    model = Language(128)
    plan = o1.plan(model, base=Language(64), optimizer="muon", lr=0.02)
    plan.apply()
    made = plan.optimizer()
    schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda t: 1 / (1 + t))
    plan.check(made, schedule)
    model(torch.zeros(2, 4, dtype=torch.long)).square().mean().backward()
    made.step()
    schedule.step()
    assert made.param_groups[0]["lr"] == pytest.approx(0.01)
    again = plan.optimizer()
    again.load_state_dict(made.state_dict())
    assert [group["lr"] for group in again.param_groups] == [
        group["lr"] for group in made.param_groups
    ]
    assert set(map(id, again.state)) == set(map(id, made.state))


def test_tensors_with_equal_settings_share_a_group_with_their_names():
    groups = o1.plan(mlp(256, depth=6), base=mlp(64, depth=6)).param_groups()
    assert len(groups) == 4
    assert [group["name"] for group in groups] == ["embedding+vector", "hidden", "readout", "fixed"]
    assert groups[1]["names"] == [f"{2 * i}.weight" for i in range(1, 7)]


def test_an_optimizer_may_be_named_by_its_class():
    assert o1.plan(mlp(256), base=mlp(64), optimizer=torch.optim.SGD).settings.optimizer == "sgd"  # type: ignore[arg-type]


def test_torchs_own_constructor_takes_the_groups():
    plan = o1.plan(mlp(256), base=mlp(64), lr=3e-3, weight_decay=0.1)
    plan.check(torch.optim.AdamW(plan.param_groups(), betas=(0.9, 0.95)))


@pytest.mark.parametrize(
    ("optimizer", "decay"), [("adamw", 0.01), ("adam", 0.0), ("sgd", 0.0), ("muon", 0.1)]
)
def test_default_settings_are_those_of_torch(optimizer, decay):
    plan = o1.plan(mlp(64), base=mlp(64), optimizer=optimizer)
    assert plan["2.weight"].weight_decay == decay
    assert plan["2.weight"].lr == 1e-3


def test_weight_decay_in_two_conventions_and_no_decay():
    kept = o1.plan(mlp(256), base=mlp(64), lr=1e-2, weight_decay=0.1)["2.weight"]
    assert kept.lr * kept.weight_decay == pytest.approx(1e-3)
    assert (
        o1.plan(mlp(256), base=mlp(64), weight_decay=0.1, decay="proportional")[
            "2.weight"
        ].weight_decay
        == 0.1
    )
    assert (
        o1.plan(mlp(256), base=mlp(64), weight_decay=0.1, no_decay=["*.bias"])[
            "2.bias"
        ].weight_decay
        == 0
    )


def test_settings_that_differ_between_groups_cannot_be_passed_to_the_optimizer():
    with refuses("setting-of-the-plan", argument="eps"):
        o1.plan(mlp(256), base=mlp(64)).optimizer(eps=1e-6)
    assert o1.plan(mlp(256), base=mlp(64), eps=1e-6)["2.weight"].eps == pytest.approx(1e-6 / 4)


# --- rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rules.names())
def test_every_rule_is_applied_as_its_exponents_say(name):
    plan = o1.plan(mlp(256), base=mlp(64), rule=name, optimizer="sgd", lr=1.0)
    folded = theory.exponents.canonical(rules.get(name, "sgd"), "sgd")
    for tensor, role in {
        "0.weight": "embedding",
        "2.weight": "hidden",
        "6.weight": "readout",
    }.items():
        assert plan[tensor].lr == pytest.approx(4 ** -float(folded.c[role]))


def test_a_custom_rule():
    mine = rules.custom("mine", a=(0, 0, 0), b=(0, "1/2", "3/4"), c=(0, "1/2", "1/4"))
    plan = o1.plan(mlp(256), base=mlp(64), rule=mine, lr=1.0)
    assert plan["2.weight"].lr == pytest.approx(0.5)
    assert plan["6.weight"].factors.std == pytest.approx(4**-0.75)
    derived = rules.custom("derived", a=(0, 0, 0), b=(0, "1/2", 1))
    assert o1.plan(mlp(256), base=mlp(64), rule=derived, optimizer="sgd", lr=1.0)[
        "0.weight"
    ].lr == pytest.approx(4)


# --- attention ------------------------------------------------------------------------------------


def test_scores_are_divided_by_the_head_size_where_it_grows():
    entry = ZOO["llama-wider-heads"]
    model = entry.build(256)
    row = o1.plan(model, base=entry.build(64), lr=1.0)["model.layers.0.self_attn.q_proj.weight"]
    assert row.factors.std == pytest.approx(0.5 * 0.5)
    assert row.lr == pytest.approx(0.25 * 0.5)
    plain = o1.plan(model, base=entry.build(64), lr=1.0, score_power=0.5)
    assert plain["model.layers.0.self_attn.q_proj.weight"].lr == pytest.approx(0.25)
    assert (
        o1.plan(model, base=entry.build(64), rule="sp")[
            "model.layers.0.self_attn.q_proj.weight"
        ].factors.std
        == 0.5
    )


def test_packed_queries_take_the_factor_without_an_example_batch():
    def build(width: int) -> nn.Module:
        return nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, batch_first=True
        )

    plan = o1.plan(build(256), base=build(64))
    assert not [note for note in plan.notes if code_of(note) == "attention-scale"]
    queries = plan["self_attn.in_proj_weight"].blocks[0]
    assert (queries.kind, queries.ranges) == ("queries", ((0, 256),))
    # 1/sqrt(4) of the hidden matrix, and 1/sqrt(4) for queries: scores are divided by the head size
    assert queries.factors.std == 0.5 * 0.5


# --- files ----------------------------------------------------------------------------------------


def test_a_plan_is_the_same_after_saving_and_loading(tmp_path):
    for optimizer in ("adamw", "adafactor", "muon"):
        plan = o1.plan(Language(256, tied=True), base=Language(64, tied=True), optimizer=optimizer)
        plan.save(tmp_path / "plan.json")
        read = o1.Plan.load(tmp_path / "plan.json")
        assert (read.rows, read.settings, read.multipliers, str(read)) == (
            plan.rows,
            plan.settings,
            plan.multipliers,
            str(plan),
        )
        assert json.loads((tmp_path / "plan.json").read_text())["version"] == 1


def test_a_saved_plan_is_a_base(tmp_path):
    o1.plan(mlp(256), base=mlp(64), lr=1e-2).save(tmp_path / "plan.json")
    larger = o1.plan(mlp(1024), base=tmp_path / "plan.json", lr=1e-2)
    assert larger["2.weight"].lr == pytest.approx(1e-2 / 16)
    assert "64 -> 1024" in larger.headline


@pytest.mark.parametrize(
    "text",
    ["", "[1]", '{"format": "other"}', "\x00\xff", '{"format": "orderone plan", "version": 99}'],
)
def test_another_file_than_a_plan_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with refuses("not-a-plan-file") as caught:
        o1.Plan.load(tmp_path / "plan.json")
    assert "plan.json" in str(caught.value)


def test_a_damaged_plan_is_refused(tmp_path):
    o1.plan(mlp(256), base=mlp(64)).save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    del record["rows"][0]["lr"]
    (tmp_path / "plan.json").write_text(json.dumps(record))
    with refuses("not-a-plan-file") as caught:
        o1.Plan.load(tmp_path / "plan.json")
    assert "damaged" in str(caught.value)


# --- absolute mode --------------------------------------------------------------------------------


def test_absolute_power_laws_of_mup():
    plan = o1.plan(
        mlp(256),
        base="absolute",
        optimizer="adamw",
        lr=1.0,
        C={"hidden": 2.0},
        Lambda={"head": 3.0},
    )
    assert plan["2.weight"].init_std == pytest.approx(math.sqrt(2 / 256))
    assert plan["2.weight"].lr == pytest.approx(1 / 256)
    assert plan["6.weight"].init_std == pytest.approx(1 / 256)
    assert plan["6.weight"].lr == pytest.approx(3 / 256)
    assert plan["0.weight"].init_std == pytest.approx(32**-0.5)
    plan.apply()
    assert rms(plan.tensors()["2.weight"]) == pytest.approx(math.sqrt(2 / 256))


@pytest.mark.parametrize("strategy", ["standard", "neural-tangent", "hybrid", "maximal-update"])
def test_absolute_groups_of_the_effective_theory(strategy):
    model = ZOO["llama"].build(256)
    plan = o1.plan(model, rule=strategy, lr=1.0)
    mlp_ratio = plan["model.layers.0.mlp.up_proj.weight"].shape[0] / 256
    factors = theory.lr_factors(strategy, "adamw", n=256, n_out=101, mlp=mlp_ratio)
    names = {
        "WE": "model.embed_tokens",
        "QKVU": "model.layers.0.self_attn.q_proj",
        "head": "lm_head",
    }
    names |= {"W": "model.layers.0.mlp.up_proj", "X": "model.layers.0.mlp.down_proj"}
    for group, name in names.items():
        row = plan[f"{name}.weight"]
        assert (row.group, row.lr) == (group, pytest.approx(factors[group])), name


def test_absolute_roles_agree_with_those_from_a_base():
    for name in (
        "gpt2",
        "llama-gqa",
        "bert",
        "bart",
        "t5",
        "gpt-neox",
        "vit",
        "clip",
        "cnn-batchnorm",
        "mlp",
        "nano-gpt",
    ):
        entry = ZOO[name]
        absolute = {row.name: row.role for row in o1.plan(entry.build(128), base="absolute").rows}
        relative = {
            row.name: row.role
            for row in o1.plan(entry.build(128), base=entry.build(64), probe=False).rows
        }
        differ = {
            n: (absolute[n], r) for n, r in relative.items() if r != "fixed" and absolute[n] != r
        }
        assert not differ, name


@pytest.mark.parametrize(
    ("name", "size", "multiplier"),
    [
        ("t5", 0.67, None),
        ("gemma", 0.67, None),
        ("bart", 0.67, 1 / 16),
        ("granite", 0.67 / 8, None),
    ],
)
def test_absolute_mode_finds_powers_of_the_width_in_the_forward_code(name, size, multiplier):
    """T5 multiplies its tied head by n^-1/2, Gemma its words by n^1/2; Granite's logits are divided
    by 8, which at 64 is a power of the width by accident. The median of a normal logit is 0.67 of
    its standard deviation."""
    entry = ZOO[name]
    for width in (64, 256):
        torch.manual_seed(0)
        model = entry.build(width).eval()
        plan = o1.plan(model, rule="neural-tangent")
        plan.apply()
        assert model(**entry.batch(0)).logits.abs().median().item() == pytest.approx(
            size, rel=0.1
        ), width
    assert [m.value for m in plan.multipliers] == ([] if multiplier is None else [multiplier])
    blind = o1.plan(entry.build(256), rule="neural-tangent", probe=False)
    assert [m.value for m in blind.multipliers] == ([] if name == "granite" else [1 / 16])
    assert "skipped" in blind.probe_summary


def test_absolute_mode_has_no_gauge_and_no_depth():
    with refuses("needs-base"):
        o1.plan(mlp(64), base="absolute", gauge="unit")
    with refuses("needs-base"):
        o1.plan(mlp(64), base="absolute", depth="sqrt")
    with refuses("absolute-mode", argument="C"):
        o1.plan(mlp(64), base=mlp(32), C={"hidden": 2.0})
    with refuses("unknown-name", argument="group in C"):
        o1.plan(mlp(64), base="absolute", C={"hiden": 2.0})


@pytest.mark.parametrize("rule", ["mup", "sp", "ntk", "mf", rules.get("mup")])
def test_a_relative_rule_needs_a_base(rule):
    model = mlp(64)
    before = copy.deepcopy(model.state_dict())
    with refuses("needs-base", argument="base") as caught:
        o1.plan(model, rule=rule, lr=1e-3)
    assert 'base="absolute"' in str(caught.value)
    assert "base=build(" in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not o1.plan(model, base="absolute", rule=rule, lr=1e-3).settings.relative


def test_every_kind_of_base_gives_the_same_plan(tmp_path):
    transformers = pytest.importorskip("transformers")

    def gpt2(width):
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=width, n_head=4, n_layer=2, vocab_size=97)
        )

    with torch.device("meta"):
        model, base = gpt2(64), gpt2(32)
    wanted = o1.plan(model, base=base, lr=1e-3, probe=False)
    wanted.save(tmp_path / "plan.json")
    kinds = [{"n_embd": 32}, wanted, o1.Plan.load(tmp_path / "plan.json"), tmp_path / "plan.json"]
    for kind in [*kinds, str(tmp_path / "plan.json")]:
        plan = o1.plan(model, base=kind, lr=1e-3, probe=False)
        assert [row.lr for row in plan.rows] == [row.lr for row in wanted.rows]
        assert [row.init_std for row in plan.rows] == pytest.approx(
            [row.init_std for row in wanted.rows], rel=1e-6
        )


# --- wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "argument"),
    [
        ({"rule": "mupp"}, "unknown-name", "rule"),
        ({"optimizer": "adamx"}, "unknown-name", "optimizer"),
        ({"lr": -1.0}, "invalid-argument", "lr"),
        ({"lr": float("nan")}, "invalid-argument", "lr"),
        ({"weight_decay": "0.1"}, "invalid-argument", "weight_decay"),
        ({"depth": "linear"}, "unknown-name", "depth"),
        ({"gauge": "none"}, "unknown-name", "gauge"),
        ({"decay": "none"}, "unknown-name", "decay"),
        ({"base": 3}, "wrong-type", "base"),
        ({"base": {"hidden_size": 32}}, "invalid-argument", "base"),
        ({"depth": "sqrt", "base": mlp(64, depth=1)}, "needs-example-batch", "depth"),
    ],
)
def test_wrong_arguments_are_explained(options, code, argument):
    with refuses(code, argument=argument):
        o1.plan(mlp(128), **({"base": mlp(64)} | options))


def test_depth_needs_residual_branches():
    model, base = mlp(128), mlp(64, depth=1)
    with refuses("no-residual-branches", argument="depth"):
        o1.plan(model, base=base, depth="sqrt", inputs=torch.zeros(2, 32))


def test_a_wrong_name_in_a_configuration_lists_what_there_is():
    with refuses("unknown-name", argument="base") as caught:
        o1.plan(ZOO["llama"].build(128), base={"hidden_sizes": 64})
    assert "'hidden_sizes'" in str(caught.value)
    assert " hidden_size," in str(caught.value)


def test_another_object_than_a_model_is_refused():
    with refuses("wrong-type", argument="model"):
        o1.plan("gpt2")  # type: ignore[arg-type]
    with refuses("invalid-argument", argument="model"):
        o1.plan(nn.ReLU(), base=nn.ReLU())


def test_plans_work_without_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None\nimport orderone as o1; from torch import"
        " nn\nbuild = lambda n: nn.Sequential(nn.Linear(8, n), nn.ReLU(), nn.Linear(n, n),"
        " nn.Linear(n, 2))\nplan = o1.plan(build(64), base=build(32)); plan.apply();"
        " plan.optimizer(); print(plan.headline)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "width x2 (32 -> 64)" in result.stdout


@pytest.mark.parametrize("names", [["{}", "{0}"], ["01", "1", "02"], ["²", "2", "x"]])
def test_modules_with_odd_names_have_counterparts(names):
    """Braces, leading zeros and superscripts are parts of names, or numbers, without an error."""

    def build(width):
        layers = {name: nn.Linear(width, width) for name in names}
        return nn.Sequential(nn.Linear(4, width), nn.ModuleDict(layers), nn.Linear(width, 2))

    plan = o1.plan(build(32), base=build(8), lr=1.0, probe=False)
    for name in names:
        assert plan[f"1.{name}.weight"].lr == 1 / 4
        assert plan[f"1.{name}.bias"].lr == 1


def test_layers_with_leading_zeros_grow_in_depth():
    def build(width, layers):
        stack = {f"{layer:02d}": nn.Linear(width, width) for layer in range(layers)}
        return nn.Sequential(nn.Linear(4, width), nn.ModuleDict(stack), nn.Linear(width, 2))

    plan = o1.plan(build(32, 12), base=build(8, 4), lr=1.0, probe=False)
    assert {row.depth for row in plan.rows if row.name.startswith("1.")} == {3.0}


@pytest.mark.parametrize(("name", "suggested"), [("2.wieght", True), ("transformer", False)])
def test_unknown_tensor_is_named_with_the_nearest_one(name, suggested):
    """A plan is used like a mapping, so that a name with a typing error is a KeyError."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    base = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(KeyError) as caught:
        o1.plan(model, base=base, lr=1e-2)[name]
    assert ("'2.weight'" in str(caught.value)) is suggested
