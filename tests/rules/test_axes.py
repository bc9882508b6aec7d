"""Batch size, tokens and weight decay as factors: tables, simulated optimizers, other packages."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.errors import refuses

from orderone import rules
from orderone.core.roles import Role
from orderone.rules.axes import (
    DECAY,
    HORIZONS,
    Axis,
    Factors,
    Growth,
    Memory,
    ScaledTensor,
    decay_factor,
    horizon,
    width_factors,
)
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.updates import update_law

EXAMPLE = Path(__file__).parents[2] / "examples" / "orderone-context"
ADAM = ScaledTensor(Role.HIDDEN, 1.0, update_law("adamw"), Memory.AVERAGES)
SGD = ScaledTensor(Role.HIDDEN, 1.0, update_law("sgd"), Memory.MOMENTUM, coupled_decay=True)
LION = ScaledTensor(Role.HIDDEN, 1.0, update_law("sign"), Memory.MOMENTUM)


def factors(name: str, tensor: ScaledTensor, batch: float, tokens: float) -> Factors:
    """Return the product of both axes."""
    product = Factors()
    for axis, ratio in zip(horizon(name), (batch, tokens), strict=True):
        product = product * axis.factors(replace(tensor, ratio=float(ratio)))
    return product


@pytest.mark.parametrize(("batch", "tokens"), [(8, 1), (1, 25), (8, 25), (0.5, 4)])
def test_the_sde_rule_depends_on_kappa_alone(batch, tokens):
    kappa = batch / tokens
    found = factors("sde", ADAM, batch, tokens)
    assert found.lr == pytest.approx(kappa**0.5)
    assert found.weight_decay == pytest.approx(kappa**0.5)
    assert found.eps == pytest.approx(kappa**-0.5)
    assert found.betas == pytest.approx((kappa, kappa))
    linear = factors("sde", SGD, batch, tokens)
    assert (linear.lr, linear.weight_decay, linear.eps) == pytest.approx((kappa, 1, 1))
    fixed = factors("sde", LION, batch, tokens)
    assert (fixed.lr, fixed.weight_decay) == pytest.approx((kappa**0.5, kappa**0.5))
    assert fixed.betas == (1, 1)


@pytest.mark.parametrize("name", HORIZONS)
@pytest.mark.parametrize("tensor", [ADAM, LION])
def test_lr_times_decay_times_tokens_over_batch_is_invariant(name, tensor):
    found = factors(name, tensor, 8, 25)
    assert found.lr * found.weight_decay * 25 / 8 == pytest.approx(1)


def test_the_power_rule():
    found = factors("power", ADAM, 4, 100)
    assert found.lr == pytest.approx(2 * 100**-0.32)
    assert found.betas == (1, 4)
    with refuses("horizon-without-law", argument="horizon"):
        factors("power", SGD, 4, 100)


def test_optimizers_without_a_known_memory_or_with_relative_steps_have_no_rule():
    for law, memory in ((ADAM.law, None), (UpdateLaw(weight=1), Memory.AVERAGES)):
        tensor = ScaledTensor(Role.HIDDEN, 2.0, law, memory)
        for axis in (*horizon("sde"), *horizon("power")):
            with refuses("horizon-without-law", argument="horizon"):
                axis.factors(tensor)


# --- a second oracle: the optimizers themselves, on a noisy quadratic --------------------------


def simulate(kind: str, setting: Factors, kappa: float) -> np.ndarray:
    """Return the end points of many trainings of x^2 / 2 with noisy gradients.

    The batch is `kappa` times as large, and there are as many times fewer steps.
    """
    random = np.random.default_rng(0)
    lr = {"adam": 4e-3, "sgd": 2e-3, "lion": 6e-4}[kind] * setting.lr
    decay = {"adam": 0.2, "sgd": 0.2, "lion": 0.3}[kind] * setting.weight_decay
    fresh1, fresh2 = (0.5, 0.5) if kind == "lion" else (0.04, 0.02)  # a short fixed momentum
    beta1 = 1 - fresh1 * setting.betas[0]
    beta2 = 1 - fresh2 * setting.betas[1]
    eps = 2.0 * setting.eps
    x = np.ones(8_000)
    first = np.zeros_like(x)
    second = np.zeros_like(x)
    for step in range(1, int(1600 / kappa) + 1):
        gradient = x + 6 * random.standard_normal(len(x)) / kappa**0.5
        if kind == "sgd":
            x = x - lr * (gradient + decay * x)
        elif kind == "lion":
            direction = np.sign(beta1 * first + (1 - beta1) * gradient)
            first = beta2 * first + (1 - beta2) * gradient
            x = (1 - lr * decay) * x - lr * direction
        else:
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            size = np.sqrt(second / (1 - beta2**step)) + eps
            x = (1 - lr * decay) * x - lr * first / (1 - beta1**step) / size
    return x


@pytest.mark.parametrize(("kind", "tensor"), [("adam", ADAM), ("sgd", SGD), ("lion", LION)])
def test_the_sde_rule_preserves_mean_and_spread_and_no_rule_does_not(kind, tensor):
    base = simulate(kind, Factors(), 1.0)
    scaled = simulate(kind, factors("sde", tensor, 4, 1), 4.0)
    unscaled = simulate(kind, Factors(), 4.0)
    assert scaled.mean() == pytest.approx(base.mean(), abs=0.03)
    assert scaled.std() == pytest.approx(base.std(), rel=0.06)
    assert abs(unscaled.mean() - base.mean()) > 0.2
    assert abs(unscaled.std() / base.std() - 1) > 0.2


def test_adams_penalty_needs_no_factor_for_the_batch():
    tensor = ScaledTensor(Role.HIDDEN, 4.0, update_law("adam"), Memory.AVERAGES, coupled_decay=True)
    found = horizon("sde")[0].factors(tensor)
    assert (found.lr, found.weight_decay) == (2, 1)


# --- weight decay ------------------------------------------------------------------------------


def test_conventions_of_weight_decay_for_mup_and_adamw():
    rule = rules.get("mup", "adamw")
    growth = Growth(4, 4)
    hidden = width_factors(rule, "hidden", growth, "adamw")
    table = {}
    for name in DECAY:
        table[name] = decay_factor(hidden, "adamw", name, role=Role.HIDDEN, growth=growth)
    assert table == {
        "independent": 4,
        "timescale": 4,
        "sqrt": 2,
        "inverse-width": 1,
        "proportional": 1,
    }
    # the gain that Fan et al. preserve: sqrt(lr / decay) r^3/4
    assert (hidden.lr / table["sqrt"]) ** 0.5 * 4**0.75 == pytest.approx(1)


@pytest.mark.parametrize("role", ["embedding", "vector", "readout"])
def test_other_tensors_follow_sqrt_as_independent_and_inverse_width_with_their_width(role):
    rule = rules.get("mup", "muon")
    growth = Growth(4 if role == "readout" else 1, 1 if role == "readout" else 4)
    found = width_factors(rule, role, growth, "adamw")
    by_name = {}
    for name in DECAY:
        by_name[name] = decay_factor(found, "adamw", name, role=Role(role), growth=growth)
    assert by_name["sqrt"] == by_name["independent"]
    assert found.lr * by_name["inverse-width"] == pytest.approx(1 / 4)


# --- composition and other packages -------------------------------------------------------------


def test_compose_adds_axes_to_a_rule():
    axis = Axis("context", lambda tensor: Factors(lr=tensor.ratio), "lr x m", "test")
    recipe = rules.compose("MuP", axis, depth="completep", horizon="power", decay="timescale")
    assert (recipe.name, recipe.rule, recipe.axes) == ("mup", "mup", (axis,))
    assert (recipe.depth, recipe.horizon, recipe.decay) == ("completep", "power", "timescale")
    renamed = rules.compose(recipe, name="mine", decay="sqrt")
    assert (renamed.name, renamed.axes, renamed.decay) == ("mine", (axis,), "sqrt")
    with refuses("axis-twice", argument="axes"):
        rules.compose(recipe, axis)
    with refuses("axis-twice", argument="axes"):
        rules.compose("mup", Axis("batch", axis.factors, "", ""))
    of_shapes = {"expert_rule": "mssp", "rank_rule": "mua", "repetition_rule": "gqa-mup"}
    for option, name in of_shapes.items():
        assert getattr(rules.compose(recipe, **{option: name}), option) == name
        assert getattr(recipe, option) is None
    for wrong in (
        {"depth": "linear"},
        {"horizon": "none"},
        {"decay": "none"},
        *({option: "none"} for option in of_shapes),
    ):
        with refuses("unknown-name"):
            rules.compose("mup", **wrong)
    with refuses("unknown-name", argument="axis"):
        rules.compose("mup", "no-such-axis")


def install(folder: Path, source: Path, entry_points: dict[str, str], monkeypatch) -> None:
    """Put a distribution with these entry points on sys.path, as pip would."""
    info = folder / "example-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[orderone.rules]", *lines, ""]))
    monkeypatch.setattr(sys, "path", [str(folder), str(source), *sys.path])


def test_the_example_package_adds_a_rule_an_axis_and_a_composition(tmp_path, monkeypatch):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path, EXAMPLE / "src", project["entry-points"]["orderone.rules"], monkeypatch)
    assert "quiet-readout" in rules.names()
    assert rules.get("quiet-readout").b["readout"] == 1
    recipe = rules.compose("quiet-readout", "context")
    assert recipe.axes[0].factors(ScaledTensor(Role.HIDDEN, 4.0, ADAM.law, ADAM.memory)).lr == 2
    from orderone.rules.composition import find_composition

    found = find_composition("long-context")
    assert found is not None
    assert found.depth == "completep"


def test_a_package_that_cannot_be_imported_is_named_when_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "broken_rules.py").write_text("raise RuntimeError('no luck')\n")
    install(tmp_path, tmp_path, {"broken": "broken_rules:RULE"}, monkeypatch)
    assert "broken" not in rules.names()
    with refuses("broken-plugin") as caught:
        rules.get("broken")
    assert "no luck" in str(caught.value)
