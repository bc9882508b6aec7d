"""Random points, points that Optuna proposes, and trials that are stopped early."""

from typing import Any

import pytest
from support.errors import refuses
from support.sweep_subjects import batch, changed, mlp

from orderone.sweeping.result import Sweep
from orderone.sweeping.space import log_grid
from orderone.sweeping.sweep import sweep

optuna = pytest.importorskip("optuna")
SPACE: dict[str, Any] = {"lr": log_grid(1e-4, 1.0, 5), "seed": range(2)}
CALL: dict[str, Any] = {"widths": [8, 16], "data": batch, "steps": 4, "device": "cpu"}


def table(found: Sweep) -> Any:
    return found.frame


def test_random_points_are_the_same_for_all_arms_and_every_time(tmp_path):
    call = CALL | {"sampler": "random", "trials": 3, "store": tmp_path / "runs.db"}
    found = sweep(mlp, SPACE, **call)
    assert found.ran == 12
    lrs = table(found).groupby("width")["lr"].unique().map(list)
    assert lrs[8] == lrs[16]
    assert len(lrs[8]) == 3
    assert sweep(mlp, SPACE, **call).ran == 0
    assert sweep(mlp, SPACE, **changed(call, trials=5)).ran == 8  # two more points
    assert sweep(mlp, SPACE, **changed(call, sampler_seed=1)).ran == 12


@pytest.mark.parametrize("sampler", ["tpe", optuna.samplers.RandomSampler(seed=1)])
def test_optuna_proposes_batches_and_is_resumed_from_the_store(tmp_path, sampler):
    call = CALL | {"sampler": sampler, "together": 3, "store": tmp_path / "runs.db"}
    some = sweep(mlp, SPACE, **call, trials=4)
    assert some.ran == 4 * 2 * 2
    assert table(some).groupby("width")["lr"].nunique().tolist() == [4, 4]
    assert table(some)["lr"].between(1e-4, 1.0).all()
    more = sweep(mlp, SPACE, **call, trials=6)
    assert more.ran == 2 * 2 * 2
    assert set(table(some)["key"]) < set(table(more)["key"])  # with those of the first call
    assert len(table(more)) == 6 * 2 * 2
    again = sweep(mlp, SPACE, **call, trials=6)
    assert again.ran == 0
    assert set(table(again)["key"]) == set(table(more)["key"])


def test_a_half_done_point_is_completed_first(tmp_path):
    call = CALL | {"sampler": "tpe", "together": 2, "store": tmp_path / "runs.db", "widths": [8]}
    one_seed = sweep(mlp, SPACE | {"seed": [0]}, **call, trials=2)
    both = sweep(mlp, SPACE, **call, trials=2)
    assert both.ran == 2
    assert set(both.frame["lr"]) == set(one_seed.frame["lr"])


@pytest.mark.slow
def test_tpe_is_as_good_as_a_grid():
    call = CALL | {"widths": [8], "steps": 20}
    grid = table(sweep(mlp, SPACE, **call)).groupby("lr")["loss"].mean()
    found = sweep(mlp, SPACE, **call, sampler="tpe", trials=16, together=4)
    assert found.best()["loss"][0] <= grid.sort_values().iloc[1]


def test_whole_numbers_strings_and_lists_can_be_sampled():
    space = {"lr": log_grid(1e-3, 1e-1, 2), "depth_": range(1, 4), "kind": ["a", "b"]}

    def build(width, depth_, kind):
        assert kind in "ab"
        return mlp(width, depth_)

    found = sweep(build, space, **CALL, sampler="tpe", trials=5)
    assert set(table(found)["depth_"]) <= {1, 2, 3}
    assert len(table(found)) == 10


@pytest.mark.parametrize("stacked", [False, "auto"])
def test_halving_stops_the_worst_and_completes_the_best(tmp_path, stacked):
    call = CALL | {"widths": [8], "steps": 40, "stacked": stacked}
    space = {
        "lr": log_grid(1e-5, 3e-2, 8)[::-1]
    }  # good ones first, so that later ones are compared with them
    whole = sweep(mlp, space, **call)
    found = sweep(mlp, space, **call, pruner="halving", store=tmp_path / "runs.db")
    status = table(found).set_index("lr")["status"]
    assert set(status) == {"done", "stopped"}
    assert table(found)["steps"].sum() < 0.8 * table(whole)["steps"].sum()
    assert found.best()["lr"][0] in table(whole).nsmallest(2, "loss")["lr"].tolist()
    assert sweep(mlp, space, **call, pruner="halving", store=tmp_path / "runs.db").ran == 0
    without = sweep(
        mlp, space, **call, store=tmp_path / "runs.db"
    )  # there is no pruner now: they are run to the end
    assert without.ran == (status == "stopped").sum()
    assert set(table(without)["status"]) == {"done"}


def test_the_median_pruner_compares_with_finished_trials():
    call = CALL | {"widths": [8], "steps": 40, "stacked": False}
    found = sweep(
        mlp, {"lr": [0.03] * 1 + [0.02, 0.025, 0.028, 0.022, 1e-6]}, **call, pruner="median"
    )
    assert table(found).set_index("lr")["status"][1e-6] == "stopped"


@pytest.mark.parametrize(
    ("changed", "code", "argument", "words"),
    [
        ({"sampler": 3}, "wrong-type", "sampler", "grid, random, tpe, cmaes or a sampler"),
        ({"sampler": "tpe"}, "invalid-argument", "trials", "tpe"),
        (
            {"sampler": "tpe", "trials": 3, "space": {"seed": range(3)}},
            "invalid-argument",
            "space",
            "only seeds",
        ),
        ({"pruner": 3}, "wrong-type", "pruner", "median, halving or a pruner"),
    ],
)
def test_wrong_samplers_and_pruners_are_named(changed, code, argument, words):
    with refuses(code, argument=argument) as caught:
        sweep(**({"build": mlp, "space": SPACE, **CALL, "trials": None} | changed))
    assert words in str(caught.value)


def test_a_sampler_needs_a_number_of_trials():
    with refuses("invalid-argument", argument="trials"):
        sweep(mlp, SPACE, **CALL, sampler="tpe", trials=0)


def test_a_missing_package_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError) as caught:
        sweep(mlp, SPACE, **CALL, sampler="tpe", trials=2)
    assert caught.value.name == "optuna"
    assert "pip install 'orderone[optuna]'" in str(caught.value)


def test_the_package_of_a_sampler_is_named_before_anything_is_trained(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ImportError) as caught:
        sweep(mlp, SPACE, **CALL, sampler="cmaes", trials=2)
    assert caught.value.name == "cmaes"
    assert "pip install 'orderone[optuna]'" in str(caught.value)
