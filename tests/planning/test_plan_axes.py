"""Batch size, tokens, weight decay and further axes in a plan."""

import json
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import pytest
import torch
from support.errors import refuses
from support.registered import forgotten
from torch import nn

import orderone as o1
from orderone import rules
from orderone.rules import Axis, Factors

BATCH, TOKENS = (64, 512), (2e8, 5e9)
KAPPA = (512 / 64) / (5e9 / 2e8)
BOTH = {"batch": BATCH, "tokens": TOKENS}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def build(width, depth=2):
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Linear(8, width), nn.Sequential(*blocks), nn.Linear(width, 3))


def planned(width=64, layers=2, **options):
    torch.manual_seed(0)
    base = build(16, 2)
    settings = {"lr": 3e-3, "weight_decay": 0.1, "inputs": torch.randn(4, 8)} | options
    return o1.plan(build(width, layers), base=base, **settings)


@pytest.fixture
def unregistered():
    """Return a class of optimizers that is not in the table, and forget what is registered."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
            settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
            super().__init__(params, settings)

        def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
            return None

    with forgotten():
        yield Plain


# --- factors -------------------------------------------------------------------------------------


def test_the_sde_rule_multiplies_every_row_beside_width_and_depth():
    options = {"depth": "completep", "optimizer": partial(torch.optim.AdamW, betas=(0.9, 0.95))}
    before = planned(layers=4, **options)
    after = planned(layers=4, **options, **BOTH)
    for row, scaled in zip(before.rows, after.rows, strict=True):
        assert scaled.lr == pytest.approx(row.lr * KAPPA**0.5)
        assert scaled.weight_decay == pytest.approx(row.weight_decay * KAPPA**0.5)
        assert scaled.eps == pytest.approx(row.eps * KAPPA**-0.5)
        assert scaled.betas == pytest.approx((1 - 0.1 * KAPPA, 1 - 0.05 * KAPPA))
        assert (scaled.init_std, scaled.factors) == (row.init_std, row.factors)
        assert row.betas is None
    groups = after.optimizer().param_groups
    assert {group["betas"] for group in groups} == {after.rows[0].betas}


R, L = 4.0, 3.0  # growth of width and depth
M_B, M_D = 8.0, 25.0
K = M_B / M_D
# by hand, for depth="completep", whose branch multiplier 1/L is part of the last matrix `down`:
# initial size and gradient of four tensors
SIZES = {
    "0.weight": (1.0, 1 / R),
    "1.0.up.weight": (R**-0.5, 1 / R / L),
    "1.0.down.weight": (R**-0.5 / L, 1 / R),
    "2.weight": (1 / R, 1.0),
}
NORMALIZED = (1.0, 1 / R, 1 / R / L, 1 / R)  # factors of the rate: Adam, Lion, RMSprop
RATES = {
    "adamw": NORMALIZED,
    "adam": NORMALIZED,
    "lion": NORMALIZED,
    "rmsprop": NORMALIZED,
    "sgd": (R, L, 1 / L, 1 / R),
    "muon": (1.0, 1.0, 1 / L, 1 / R),
}


@pytest.mark.parametrize("optimizer", RATES)
def test_width_depth_batch_and_tokens_together_by_hand(optimizer):
    """Complete(d)P: lr x kappa^1/2, weight decay x kappa^1/2, eps x kappa^-1/2; SGD: lr x kappa.

    lr x weight_decay x tokens / batch stays; an L2 penalty that is normalized along with the
    gradient follows the gradient over the weight, and only the tokens."""
    torch.manual_seed(0)
    plan = planned(64, 6, optimizer=optimizer, depth="completep", **BOTH)
    for (name, (std, gradient)), rate in zip(SIZES.items(), RATES[optimizer], strict=True):
        row = plan[name]
        base = row.base_std
        assert row.init_std == pytest.approx(base * std, rel=1e-9)
        horizon = K if optimizer == "sgd" else K**0.5
        assert row.lr == pytest.approx(3e-3 * rate * horizon, rel=1e-12), name
        if optimizer in ("adam", "rmsprop"):
            decay = gradient / std * M_D**-0.5
        else:
            decay = K / (rate * horizon)
        assert row.weight_decay == pytest.approx(0.1 * decay, rel=1e-12), name
        if isinstance(row.eps, float):
            size = gradient
            if row.optimizer == "muon":  # compared with the norm of the gradient
                size *= R
            eps = {"muon": 1e-7}.get(row.optimizer, 1e-8)
            assert row.eps == pytest.approx(eps * size * K**-0.5, rel=1e-12), name


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "muon", "lion", "rmsprop"])
def test_equal_sizes_change_nothing(optimizer):
    options = {"optimizer": optimizer, "lr": 1e-3}
    plain = planned(**options)
    equal = planned(**options, batch=(64, 64), tokens=(2e8, 2e8))
    assert equal.rows == plain.rows
    assert planned(**options, horizon="power").rows == plain.rows  # nothing to follow


def test_the_rule_of_each_optimizer():
    sgd = planned(optimizer="sgd", **BOTH)
    for row, before in zip(sgd.rows, planned(optimizer="sgd").rows, strict=True):
        assert row.lr == pytest.approx(before.lr * KAPPA)
        assert row.weight_decay == before.weight_decay
    rmsprop = planned(optimizer="rmsprop", **BOTH)
    assert rmsprop.optimizer().param_groups[0]["alpha"] == pytest.approx(1 - 0.01 * KAPPA)
    muon = planned(optimizer="muon", lr={"muon": 1e-2, "adamw": 1e-3}, **BOTH)
    assert {row.betas is None for row in muon.rows if row.optimizer == "muon"} == {True}
    assert {row.betas is None for row in muon.rows if row.optimizer == "adamw"} == {False}
    for name in ("adafactor", "adagrad", "nadam"):
        with refuses("horizon-without-law", argument="horizon"):
            planned(optimizer=name, **BOTH)
        planned(optimizer=name, horizon=None, **BOTH)
    with refuses("horizon-without-law", argument="horizon"):
        planned(optimizer="sgd", horizon="power", **BOTH)


def test_power_and_none():
    power = planned(horizon="power", **BOTH)
    plain = planned()
    for row, before in zip(power.rows, plain.rows, strict=True):
        assert row.lr / before.lr == pytest.approx(8**0.5 * 25**-0.32)
        assert row.lr * row.weight_decay == pytest.approx(before.lr * before.weight_decay * KAPPA)
    assert planned(horizon=None, **BOTH).rows == plain.rows
    assert "horizon=None" in str(planned(horizon=None, **BOTH))


@pytest.mark.parametrize("horizon", ["sde", "power", None])
def test_timescale_preserves_the_invariant_whatever_the_rule(horizon):
    plan = planned(decay="timescale", horizon=horizon, **BOTH)
    for row in plan.rows:
        assert row.lr * row.weight_decay / (3e-3 * 0.1) == pytest.approx(KAPPA)
    base, target = 3e-4 * 2e8 / 64, plan.rows[0].lr * plan.rows[0].weight_decay * 5e9 / 512
    assert base == pytest.approx(target)
    assert f"base {base:.4g}, target {base:.4g}" in str(plan)


def test_conventions_of_weight_decay_in_a_plan():
    name = "1.0.up.weight"
    decays = {}
    for decay in ("independent", "timescale", "sqrt", "inverse-width", "proportional"):
        decays[decay] = planned(decay=decay)[name].weight_decay / 0.1
    assert decays == pytest.approx(
        {"independent": 4, "timescale": 4, "sqrt": 2, "inverse-width": 1, "proportional": 1}
    )
    muon = planned(optimizer="muon", decay="inverse-width", weight_decay=0.1)
    assert muon[name].lr * muon[name].weight_decay == pytest.approx(3e-3 * 0.1 / 4)
    for optimizer in ("sgd", "muon", "adafactor"):
        with refuses("decay-without-law", argument="decay"):
            planned(optimizer=optimizer, decay="sqrt")


def test_a_step_of_the_planned_optimizer_is_that_of_adamw_by_hand():
    plan = planned(**BOTH)
    model = plan.apply()
    other = build(64)
    other.load_state_dict(model.state_dict())
    groups = []
    for name, p in other.named_parameters():
        row = plan[name]
        groups.append(
            {
                "params": [p],
                "lr": row.lr,
                "weight_decay": row.weight_decay,
                "eps": row.eps,
                "betas": (1 - 0.1 * KAPPA, 1 - 0.001 * KAPPA),
            }
        )
    optimizers = [plan.optimizer(), torch.optim.AdamW(groups)]
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        for net, optimizer in zip((model, other), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_registered_optimizer_says_how_it_remembers(unregistered):
    class Averaging(unregistered):
        pass

    o1.optimizers.register(Averaging, law="adam", decoupled_decay=True)
    with refuses("horizon-without-law", argument="horizon"):
        planned(optimizer=Averaging, **BOTH)
    o1.optimizers.register(Averaging, law="adam", decoupled_decay=True, memory="averages")
    plan = planned(optimizer=Averaging, **BOTH)
    assert plan.optimizer().param_groups[0]["betas"] == pytest.approx((1 - 0.1 * KAPPA, 0.99968))
    with refuses("invalid-argument", argument="memory"):
        o1.optimizers.register(torch.optim.SGD, law="sgd", memory="averages")
    with refuses("unknown-name", argument="memory"):
        o1.optimizers.register(Averaging, law="adam", memory="long")


# --- origins -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gauge", ["folded", "paper"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "muon"])
def test_the_product_of_all_origins_makes_the_row(optimizer, gauge):
    lr = {"default": 3e-3, "embedding": 1e-2, "1.1.up.weight": 5e-3}
    plan = planned(
        layers=4,
        depth="completep",
        optimizer=optimizer,
        lr=lr,
        gauge=gauge,
        init_scale={"default": 1.0, "readout": 0.5},
        **BOTH,
    )
    for row in plan.rows:
        for field, value, base in (
            ("lr", row.lr, 3e-3),
            ("weight_decay", row.weight_decay, 0.1),
        ):
            factor = prod(getattr(origin, field) for origin in row.origins)
            assert base * factor == pytest.approx(value), (row.name, field)
        init = prod(origin.init for origin in row.origins)
        assert row.base_std is not None
        assert row.init_std == pytest.approx(row.base_std * init)
        if isinstance(row.eps, float) and row.optimizer != "muon":
            assert 1e-8 * prod(origin.eps for origin in row.origins) == pytest.approx(row.eps)
        if row.betas is not None:
            fresh = prod(origin.betas[1] for origin in row.origins)
            assert 1 - row.betas[1] == pytest.approx(0.001 * fresh)


def test_values_tuned_for_a_role_are_constant_on_every_axis_and_shown():
    lr = {"default": 3e-3, "embedding": 1.2e-2}
    for width, layers in ((16, 2), (64, 2), (64, 4)):
        tuned = planned(width, layers, lr=lr, depth="completep", **BOTH)
        plain = planned(width, layers, depth="completep", **BOTH)
        assert tuned["0.weight"].lr / plain["0.weight"].lr == pytest.approx(4)
        assert "tuned for 'embedding'" in str(tuned)
        assert "x4" in next(line for line in str(tuned).splitlines() if "tuned for" in line)


def test_the_text_names_every_factor_the_invariant_and_the_timescale():
    text = planned(layers=4, depth="completep", **BOTH).table(wide=True)
    for words in (
        "width",
        "depth",
        "batch",
        "tokens",
        "x2.828",
        "x0.2",
        "arXiv:2205.10287",
        "1 - beta",
    ):
        assert words in text
    assert "batch x8 (64 -> 512), tokens x25 (2e+08 -> 5e+09)" in text
    assert "lr x weight_decay x tokens / batch: base 937.5, target 937.5" in text
    assert "base 3333 steps, target 1.042e+04 steps" in text
    assert "base 2.133e+05 tokens, target 5.333e+06 tokens" in text
    plain = planned()
    assert "factors of" not in str(plain)
    assert "factors of" in plain.table(origins=True)
    assert "no averaging timescale" in planned(optimizer="adam", **BOTH).table(wide=True)
    unchanged = planned(16, **BOTH)
    assert "batch x8" in unchanged.headline
    assert "equals its base" not in unchanged.headline


def test_the_note_beyond_the_critical_batch():
    class Noise:
        critical_batch = 100.0

    for critical in (100, Noise()):
        plan = planned(critical_batch=critical, **BOTH)
        assert any("beyond-critical-batch" in note for note in plan.notes)
    assert not any("critical" in note for note in planned(critical_batch=512, **BOTH).notes)


# --- files, groups, exports ----------------------------------------------------------------------


def test_files_hold_all_axes_and_refuse_damage(tmp_path):
    plan = planned(critical_batch=100, decay="timescale", **BOTH)
    plan.save(tmp_path / "plan.json")
    loaded = o1.Plan.load(tmp_path / "plan.json")
    assert loaded.rows == plan.rows
    assert loaded.settings == plan.settings
    assert str(loaded) == str(plan)
    attached = loaded.attach(build(64))
    assert attached.param_groups()[0]["betas"] == plan.param_groups()[0]["betas"]
    record = json.loads((tmp_path / "plan.json").read_text())
    record["settings"]["axes"]["batch"][0] = 32
    (tmp_path / "plan.json").write_text(json.dumps(record))
    with refuses("not-a-plan-file"):
        o1.Plan.load(tmp_path / "plan.json")
    del record["checksum"]
    record["settings"]["axes"]["batch"][0] = -1
    (tmp_path / "plan.json").write_text(json.dumps(record))
    with refuses("not-a-plan-file") as caught:
        o1.Plan.load(tmp_path / "plan.json")
    assert "settings.axes.batch[0]" in str(caught.value)


def test_betas_belong_to_the_plan():
    plan = planned(**BOTH)
    with refuses("setting-of-the-plan", argument="betas"):
        plan.optimizer(betas=(0.9, 0.95))
    optimizer = plan.optimizer()
    plan.check(optimizer)
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    with refuses("setting-of-the-plan", argument="betas"):
        plan.check(optimizer)
    planned().optimizer(betas=(0.9, 0.95))


@pytest.mark.parametrize(
    "target", ["torchtitan", "megatron", "olmo-core", "deepspeed", "huggingface", "json", "yaml"]
)
def test_exports_hold_the_betas(target):
    plan = planned(**BOTH)
    settings = plan.export(target, names="as-is").settings()
    for row in plan.rows:
        assert settings[row.name].betas == pytest.approx(row.betas), row.name
    plain = planned().export(target, names="as-is").settings()
    assert {values.betas for values in plain.values()} == {None}


def test_an_export_refuses_betas_that_differ():
    plan = planned(**BOTH)
    first, *rest = plan.rows
    mixed = replace(plan, rows=(replace(first, betas=(0.5, 0.9)), *rest))
    with refuses("export-loss", argument="target") as caught:
        mixed.export("megatron", names="as-is")
    assert "betas" in str(caught.value)
    assert mixed.export("torchtitan").settings()[first.name].betas == (0.5, 0.9)


# --- arguments -----------------------------------------------------------------------------------


def test_without_a_batch_size_it_stays():
    alone = planned(tokens=TOKENS)
    both = planned(batch=(64, 64), tokens=TOKENS)
    for row, other in zip(alone.rows, both.rows, strict=True):
        assert (row.lr, row.weight_decay, row.eps, row.betas) == (
            other.lr,
            other.weight_decay,
            other.eps,
            other.betas,
        )
    assert "batch size as at the base" in str(alone)


def test_wrong_sizes_are_refused():
    for wrong in (64, (64,), (64, 128, 256), "64"):
        with refuses("not-a-pair", argument="batch"):
            planned(batch=wrong)
    for wrong in ((0, 64), (64, -1), (64, float("nan")), (64, float("inf")), (True, 2), ("a", 2)):
        with refuses("invalid-argument", argument="batch"):
            planned(batch=wrong)
    planned(tokens=TOKENS, horizon="power")
    planned(tokens=TOKENS, horizon=None)
    with refuses("horizon-needs-batch", argument="batch"):
        planned(critical_batch=100)
    with refuses("unknown-name", argument="horizon"):
        planned(batch=BATCH, horizon="linear")
    with refuses("unknown-name", argument="decay"):
        planned(decay="linear")
    with refuses("memory-below-one-step", argument="batch"):
        planned(batch=(64, 1024))
    planned(batch=(64, 1024), horizon="power", optimizer="muon", lr=1e-3)


@pytest.mark.parametrize("options", [BOTH, {"decay": "timescale"}, {"decay": "sqrt"}])
def test_absolute_plans_have_no_base_to_scale_from(options):
    with refuses("needs-base", argument="base"):
        o1.plan(build(16), base="absolute", **options)


def test_composed_rules_and_further_axes():
    axis = Axis("context", lambda tensor: Factors(lr=tensor.ratio**-0.5), "lr / m^1/2", "test")
    recipe = rules.compose("mup", axis, horizon="power", decay="timescale", name="mine")
    plan = planned(rule=recipe, axes={"context": (1, 4)}, **BOTH)
    same = planned(horizon="power", decay="timescale", **BOTH)
    for row, other in zip(plan.rows, same.rows, strict=True):
        assert row.lr == pytest.approx(other.lr / 2)
    assert plan.settings.rule == "mine"
    assert "context x4" in str(plan)
    with refuses("axis-without-sizes", argument="axes"):
        planned(rule=recipe)
    with refuses("option-of-the-rule", argument="decay"):
        planned(rule=recipe, axes={"context": (1, 4)}, decay="sqrt")
    with refuses("unknown-name", argument="axis"):
        planned(axes={"context": (1, 4)})
    with refuses("not-a-pair"):
        planned(rule=recipe, axes={"context": 4})


class Named(torch.optim.Optimizer):
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


class WithMatrixEps(Named):
    def __init__(self, params, lr=1e-3, weight_decay=0.0, matrix_eps=1e-6):
        defaults = {"lr": lr, "weight_decay": weight_decay, "matrix_eps": matrix_eps}
        super().__init__(params, defaults)


class WithEpsilon(Named):
    def __init__(self, params, lr=1e-3, weight_decay=0.0, epsilon=1e-6):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "epsilon": epsilon})


@pytest.mark.parametrize(
    ("kind", "name", "power"), [(WithMatrixEps, "matrix_eps", 2), (WithEpsilon, "epsilon", 1)]
)
def test_eps_under_another_name_is_scaled(kind, name, power):
    """Shampoo compares matrix_eps with squares of norms, Dion epsilon with norms."""
    with forgotten():
        o1.optimizers.register(kind, law="shampoo", decoupled_decay=True, memory="momentum")
        options = {"optimizer": kind, "depth": "completep", "batch": BATCH}
        plan = planned(64, 6, **options)
        # entries of the gradient R^-1 L^-1, norm R times as large, and B^-1/2 with the batch
        up: Any = plan["1.0.up.weight"]
        assert up.eps == pytest.approx(1e-6 * (8**-0.5 / L) ** power)
        groups = {group["names"][0]: group for group in plan.param_groups()}
        assert groups["1.0.up.weight"][name] == up.eps
        plan.check(plan.optimizer())
        product = prod(origin.eps for origin in up.origins)
        assert product == pytest.approx(up.eps / 1e-6)
        tuned = planned(64, 6, **options | {"optimizer": partial(kind, **{name: 1e-4})})
        assert tuned["1.0.up.weight"].eps == pytest.approx(100 * up.eps)
        changed: dict[str, Any] = {name: 1.0}
        with refuses("setting-of-the-plan", argument=name):
            plan.optimizer(**changed)


def test_an_average_of_one_step_stays_one():
    """With beta 0 there is no average whose memory could follow the batch size."""
    optimizer = partial(torch.optim.AdamW, betas=(0.0, 0.95))
    plan = planned(optimizer=optimizer, batch=BATCH)
    assert plan.rows[0].betas == pytest.approx((0.0, 1 - 0.05 * 8))
    with refuses("memory-below-one-step", argument="batch"):
        planned(optimizer=partial(torch.optim.AdamW, betas=(0.5, 0.95)), batch=BATCH)


def test_eps_of_both_optimizers_of_muon():
    plain = planned(optimizer="muon")
    both = planned(optimizer="muon", eps={"muon": 1e-5, "adamw": 1e-10})
    one = planned(optimizer="muon", eps=1e-5)
    assert any("eps-of-one-optimizer" in note for note in one.notes)
    assert both.notes == planned(optimizer="muon").notes
    for name, factor in (("1.0.up.weight", 1e2), ("0.weight", 1e-2)):
        eps = plain[name].eps
        assert isinstance(eps, float)
        assert both[name].eps == pytest.approx(eps * factor)
        assert one[name].eps == pytest.approx(eps * max(factor, 1))
    assert {group["eps"] for group in both.optimizer().param_groups} >= {both["0.weight"].eps}
    with refuses("unknown-name"):
        planned(optimizer="muon", eps={"sgd": 1.0})


def test_a_sweep_and_train_pass_the_options_on():
    def batch(step, seed):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        return x, x[:, :3]

    recipe = rules.compose("mup", horizon="power", name="mine")
    settings = {"space": {"lr": [1e-3]}, "data": batch, "steps": 3, "widths": [8]}
    swept = o1.sweep(build, rule=["mup", recipe], **settings, **BOTH).frame
    assert list(swept["rule"]) == ["mup", "mine"]
    assert len(set(swept["loss"])) == 2
    plan = planned(16, lr=1e-3, **BOTH)
    assert o1.train(plan, batch, steps=2) is not None
