"""Sweeps over settings of roles, patterns and optimizers: losses, stacking, store and transfer."""

# pyright: reportGeneralTypeIssues=false
# pyright: reportCallIssue=false

import numpy as np
import pandas as pd
import pytest
import torch
from support.errors import refuses
from torch import nn
from torch.nn import functional

import orderone as o1
from orderone.sweeping.drift import TRANSFERS, predicted_drift

STEPS = 6


def build(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Embedding(9, width), nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, 9)
    )


def data(step: int, seed: int):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.randint(9, (16,), generator=generator)
    return x, (x * 2 + 1) % 9


def sweep(space, **options):
    options = {"widths": [16, 32], "data": data, "steps": STEPS, "device": "cpu", **options}
    return o1.sweep(build, space, **options)


def losses(result):
    columns = [name for name in result.frame if name not in ("seconds", "key", "error")]
    frame = result.frame[columns]
    settings = [name for name in frame if name not in ("loss", "evaluation")]
    return frame.sort_values(settings, ignore_index=True)


SPACES = {
    "roles": {"lr": [1e-2], "lr.embedding": [3e-3, 3e-2], "lr.*.bias": [1e-3, 1e-2]},
    "all three": {
        "lr": [1e-2],
        "weight_decay": [0.1],
        "weight_decay.readout": [0.0, 0.5],
        "init_scale.embedding": [0.5, 2.0],
        "init_scale": [1.5],
    },
}


@pytest.mark.parametrize("name", SPACES)
def test_a_stack_has_the_losses_of_stand_alone_runs(name):
    stacked = sweep(SPACES[name], stacked=True)
    alone = sweep(SPACES[name], stacked=False)
    assert not stacked.notes
    pd.testing.assert_frame_equal(losses(stacked), losses(alone), rtol=1e-5)
    assert losses(alone)["loss"].nunique() == len(alone.frame)  # every setting has an effect


def test_muon_and_adamw_have_their_own_rates_in_a_stack():
    space = {"lr.muon": [1e-3, 1e-2], "lr.adamw": [1e-3, 1e-2]}
    stacked = sweep(space, optimizer="muon", stacked=True)
    alone = sweep(space, optimizer="muon", stacked=False)
    pd.testing.assert_frame_equal(losses(stacked), losses(alone), rtol=1e-5)
    assert losses(alone)["loss"].nunique() == 8


def test_a_trial_equals_a_training_with_a_hand_written_optimizer():
    space = {"lr": [1e-2], "lr.embedding": [3e-2], "init_scale.embedding": [0.5], "seed": [3]}
    result = sweep(space, widths=[16], weight_decay={"default": 0.1, "vector": 0.0})
    torch.manual_seed(3)
    model = build(16)
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    groups = [
        {"params": [model[0].weight], "lr": 3e-2, "weight_decay": 0.1},
        {"params": [model[1].weight, model[3].weight], "lr": 1e-2, "weight_decay": 0.1},
        {"params": [model[2].weight, *[model[i].bias for i in (1, 2, 3)]], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    expected = []
    for step in range(STEPS):
        x, y = data(step, 3)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    [outcome] = result.outcomes.values()
    assert list(outcome.losses) == pytest.approx(expected, rel=1e-5)


# --- ways to write the same sweep -----------------------------------------------------------------


def test_a_mapping_its_order_and_the_keywords_are_one_sweep(tmp_path):
    store = tmp_path / "runs.db"
    first = sweep({"lr": [1e-2], "lr.embedding": [1e-3, 1e-1]}, store=store)
    assert first.ran == 4
    nested = sweep({"lr": {"embedding": [1e-3, 1e-1], "default": 1e-2}}, store=store)
    keywords = sweep({"lr.embedding": [1e-1, 1e-3]}, lr=1e-2, store=store)
    fixed = sweep({"seed": [0]}, lr={"default": 1e-2, "embedding": 1e-3}, store=store)
    assert nested.ran == keywords.ran == fixed.ran == 0
    assert set(nested.trials) == set(keywords.trials) == set(first.trials)
    other = sweep({"lr": [1e-2], "lr.readout": [1e-3]}, store=store)
    plain = sweep({"lr": [1e-2]}, store=store)
    assert other.ran == plain.ran == 2


def test_columns_and_the_best_point_have_the_names_of_the_space():
    result = sweep(SPACES["roles"])
    names = ["lr", "lr.embedding", "lr.*.bias"]
    columns = list(result.frame)
    assert [name for name in columns if name.startswith("lr")] == names
    assert columns.index("lr.embedding") == columns.index("lr") + 1
    best = result.best()
    assert set(names) <= set(best)
    assert len(best) == 2
    assert "lr.embedding" in str(result)


def test_random_points_are_drawn_between_the_ends_of_a_grid():
    space = {"lr": 1e-2, "lr.embedding": o1.log_grid(1e-3, 1e-1, 3)}
    result = sweep(space, widths=[16], sampler="random", trials=4)
    rates = result.frame["lr.embedding"]
    assert rates.nunique() == 4
    assert rates.between(1e-3, 1e-1).all()


def test_optuna_tunes_a_rate_of_a_role():
    pytest.importorskip("optuna")
    space = {"lr": 1e-2, "lr.embedding": o1.log_grid(1e-3, 1e-1, 3)}
    result = sweep(space, widths=[16], sampler="tpe", trials=3, together=2)
    assert result.frame["lr.embedding"].nunique() == 3


@pytest.mark.parametrize(
    ("space", "options", "code", "argument"),
    [
        ({"lr": [1e-2], "lr.embeding": [1e-2]}, {}, "unknown-name", "lr"),
        ({"lr": [1e-2], "lr.muon": [1e-2]}, {}, "unknown-name", "lr"),
        ({"lr": [1e-2], "lr.muon": [1e-2]}, {"optimizer": ["muon", "adamw"]}, "unknown-name", "lr"),
        ({"lr.embedding": [1e-2]}, {}, "invalid-argument", "lr"),  # no rate for the others
        ({"lr": [1e-2], "eps.embedding": [1e-8]}, {}, "unknown-space-key", "space"),
        ({"lr": [1e-2], "lr.embedding": [0.0]}, {}, "invalid-argument", "lr.embedding"),
        ({"lr": [{"default": 1e-2, "embedding": 1e-3}]}, {}, "wrong-type", "lr"),
        ({"lr": [1e-2]}, {"lr": 1e-3}, "invalid-argument", "lr"),
    ],
)
def test_wrong_keys_are_refused_before_training(space, options, code, argument):
    with refuses(code) as caught:
        sweep(space, **options)
    assert caught.value.argument in (argument, None)


# --- transfer -------------------------------------------------------------------------------------


def parabolas(column, constants, best=-6.0):
    """Return a frame of trainings whose best rate is 2^best at every width."""
    rows = []
    generator = np.random.default_rng(0)
    for width in (64, 128, 256):
        for seed in range(3):
            for x in np.arange(-10.0, -1.0):
                loss = 1 + 0.05 * (x - best) ** 2 + 0.002 * generator.normal()
                rows.append({"width": width, "seed": seed, column: 2.0**x, "loss": loss})
    return pd.DataFrame(rows).assign(**constants)


def test_the_rate_that_varies_is_studied():
    constants = {"lr": 3e-3, "weight_decay": 0.1, "weight_decay.vector": 0.0, "init_scale": 2.0}
    study = o1.Transfer.from_frame(parabolas("lr.embedding", constants))
    assert study.setting == "lr.embedding"
    assert study.verdict == TRANSFERS
    assert "best lr.embedding" in str(study)
    target = study.target(width=1024)
    assert target.rates_for_plan == {"default": 3e-3, "embedding": target.lr}
    assert target.lr == pytest.approx(2**-6, rel=0.1)
    plan = target.plan(build(64), build(16))
    assert plan["0.weight"].lr == target.lr
    assert plan["2.weight"].lr == 3e-3
    assert plan["2.weight"].weight_decay == 0.0
    assert plan["0.weight"].init_scale == 2.0
    made = eval(target.snippet.splitlines()[0].partition("=")[2], {"o1": o1, "build": build})
    assert made["0.weight"].lr == pytest.approx(target.lr, rel=1e-3)
    assert made["2.weight"].weight_decay == 0.0


def test_several_rates_that_vary_need_a_choice():
    first = parabolas("lr.embedding", {"lr": 3e-3})
    second = parabolas("lr.embedding", {"lr": 1e-2}, best=-5.0)
    frame = pd.concat([first, second], ignore_index=True)
    with refuses("choose-with-where", argument="setting"):
        o1.Transfer.from_frame(frame)
    with refuses("choose-with-where", argument="where"):
        o1.Transfer.from_frame(frame, setting="lr.embedding")
    study = o1.Transfer.from_frame(frame, setting="lr.embedding", where={"lr": 1e-2})
    assert study.rates == {"lr": 1e-2}
    assert study.optima["mup"][0].x == pytest.approx(-5.0, abs=0.2)
    with refuses("unknown-name", argument="setting"):
        o1.Transfer.from_frame(frame, setting="lr.hidden", where={"lr": 1e-2})


def test_a_setting_of_a_role_that_varies_needs_a_choice():
    first = parabolas("lr", {"init_scale.embedding": 1.0})
    second = parabolas("lr", {"init_scale.embedding": 2.0})
    with refuses("choose-with-where", argument="where"):
        o1.Transfer.from_frame(pd.concat([first, second], ignore_index=True))


def test_the_predicted_drift_is_that_of_the_tuned_roles():
    def drift(*roles):
        return predicted_drift("standard", "adamw", "width", None, roles)[0]

    assert drift("embedding") == 0
    assert drift("hidden") == -1
    assert drift("embedding", "hidden") == -1
    unknown = predicted_drift("standard", "adamw", "width", None, None)[0]
    assert np.isnan(unknown)
    assert predicted_drift("mup", "adamw", "width", None, None)[0] == 0
