"""Groups of settings are equivalent to the flat keywords of a sweep."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from inspect import signature

import pytest
from support.errors import refuses
from support.sweep_subjects import batch, mlp

import orderone as o1
from orderone.sweeping.options import GROUPS

SPACE = {"lr": [0.01, 0.02]}


def losses(sweep: o1.Sweep) -> dict[str, list[float]]:
    return {key: outcome.losses.tolist() for key, outcome in sweep.outcomes.items()}


def test_groups_and_keywords_are_the_same_sweep(tmp_path):
    flat = o1.sweep(
        mlp, SPACE, widths=8, data=batch, steps=3, schedule="cosine", store=tmp_path / "flat.db"
    )
    grouped = o1.sweep(
        mlp,
        SPACE,
        widths=8,
        training=o1.Training(data=batch, steps=3, schedule="cosine"),
        search=o1.Search(sampler="grid"),
        execution=o1.Execution(store=tmp_path / "grouped.db"),
    )
    mixed = o1.sweep(
        mlp, SPACE, widths=8, data=batch, training=o1.Training(steps=3), schedule="cosine"
    )
    assert losses(flat) == losses(grouped) == losses(mixed)
    assert grouped.store == str(tmp_path / "grouped.db")
    assert grouped.store is not None
    assert losses(o1.Sweep.load(grouped.store)) == losses(flat)


def test_a_search_group_sets_the_sampler():
    found = o1.sweep(
        mlp,
        {"lr": o1.log_grid(1e-3, 1e-1, 3)},
        widths=8,
        training=o1.Training(data=batch, steps=2),
        search=o1.Search(sampler="random", trials=4, sampler_seed=1),
    )
    assert len(found.trials) == 4


@pytest.mark.parametrize(
    ("keywords", "argument", "words"),
    [
        ({"steps": 4}, "steps", "got 4 as a keyword and 3 in training"),
        ({"schedule": "constant"}, "schedule", "'constant' as a keyword and 'linear' in training"),
        ({"sampler_seed": 0}, "sampler_seed", "0 as a keyword and 1 in search"),
        ({"stacked": True}, "stacked", "True as a keyword and False in execution"),
    ],
)
def test_two_values_of_one_setting_are_refused(keywords, argument, words):
    groups = {
        "training": o1.Training(data=batch, steps=3, schedule="linear"),
        "search": o1.Search(sampler_seed=1),
        "execution": o1.Execution(stacked=False),
    }
    with refuses("invalid-argument", argument=argument) as caught:
        o1.sweep(mlp, SPACE, widths=8, **groups, **keywords)
    assert words in str(caught.value)


def test_the_same_value_twice_is_no_conflict():
    found = o1.sweep(
        mlp, SPACE, widths=8, data=batch, steps=2, training=o1.Training(data=batch, steps=2)
    )
    assert len(found.outcomes) == 2


def test_a_group_of_another_kind_is_refused():
    with refuses("wrong-type", argument="training"):
        o1.sweep(mlp, SPACE, training={"steps": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize("group", GROUPS.values())
def test_every_field_is_a_keyword_of_sweep_with_the_same_default(group):
    parameters = signature(o1.sweep).parameters
    for field in fields(group):
        assert parameters[field.name].default == field.default
        assert parameters[field.name].annotation == field.type


def test_groups_are_frozen_and_comparable():
    training = o1.Training(steps=3)
    assert training == o1.Training(steps=3)
    with pytest.raises(FrozenInstanceError):
        training.steps = 4  # type: ignore[misc]


def test_importing_sweeps_loads_no_theory_of_limits_and_no_pandas():
    heavy = ("orderone.theory.limits", "orderone.measure", "array_api_compat", "pandas", "optuna")
    code = (
        f"import orderone.sweeping, sys; print([name for name in {heavy} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
