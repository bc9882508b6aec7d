"""Points of a space, and input that is not a space."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refuses

from orderone import rules
from orderone.sweeping.space import LogGrid, log_grid, read_space


@given(st.floats(1e-8, 1.0), st.floats(1.5, 1e6), st.integers(2, 40))
def test_a_log_grid_has_its_ends_and_equal_ratios(low, ratio, n):
    grid = log_grid(low, low * ratio, n)
    assert len(grid) == n
    assert grid[0] == pytest.approx(low, rel=1e-11)
    assert grid[-1] == pytest.approx(low * ratio, rel=1e-11)
    assert np.diff(np.log(grid)) == pytest.approx(math.log(ratio) / (n - 1), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ((0, 1, 3), "low"),
        ((-1, 1, 3), "low"),
        ((1, 0.5, 3), "high"),
        ((1, 2, 1), "n"),
        ((1, math.nan, 3), "high"),
        ((1, 2, 0), "n"),
        ((1, 1, 2), "high"),
    ],
)
def test_wrong_arguments_of_a_log_grid_are_named(arguments, argument):
    with refuses("invalid-argument", argument=argument):
        log_grid(*arguments)


def read(space, widths=None, depths=None, rule: Any = "mup", optimizer="adamw"):
    return read_space(space, widths, depths, rule, optimizer)


def test_arms_repeats_and_points():
    space = read(
        {"lr": [1e-3, 1e-2], "seed": range(3), "heads": [1, 2]}, widths=[64, 32], rule=["sp", "mup"]
    )
    assert len(space.all_arms()) == 4
    assert [point["seed"] for point in space.all_repeats()] == [0, 1, 2]
    assert len(list(space.grid())) == 4
    assert space.sizes == {"width": (32, 64)}
    assert space.arguments == ["heads"]


def test_arrays_and_single_values_are_accepted():
    space = read({"lr": np.array([1e-3, 1e-2]), "weight_decay": 0.1, "seed": 3})
    assert space.tuned == {"lr": (1e-3, 1e-2), "weight_decay": (0.1,)}
    assert space.repeats == {"seed": (3,)}


def test_a_custom_rule_is_identified_by_its_name():
    custom = rules.custom("mine", a=[0, 0, 1], b=[0, "1/2", 0], c=[0, 1, 1])
    space = read({"lr": 0.1}, rule=["sp", custom])
    assert space.arms["rule"] == ("sp", "mine")
    assert space.rules == {"mine": custom}


def test_random_points_are_reproducible_and_stay_inside():
    space = read({"lr": log_grid(1e-4, 1e-1, 4), "weight_decay": [0.0, 0.1]})
    points: list[Any] = list(space.draw(50, seed=1))
    assert points == list(space.draw(50, seed=1))
    assert points != list(space.draw(50, seed=2))
    assert len({point["lr"] for point in points}) == 50
    assert all(1e-4 <= point["lr"] <= 1e-1 for point in points)
    assert isinstance(space.tuned["lr"], LogGrid)


@pytest.mark.parametrize(
    ("space", "options", "code", "argument", "words"),
    [
        ({}, {}, "invalid-argument", "space", "at least one"),
        ([1], {}, "wrong-type", "space", "list"),
        ({"lr": []}, {}, "invalid-argument", "lr", "at least one"),
        ({"seed": []}, {}, "invalid-argument", "seed", "at least one"),
        ({"lr": 0.1, "width": [1]}, {}, "unknown-space-key", "space", "widths="),
        ({"lr": 0.1}, {"widths": []}, "invalid-argument", "widths", "at least one"),
        ({"lr": 0.1}, {"rule": "mop"}, "unknown-name", "rule", "'mup'?"),
        ({"lr": 0.1, "act": [object()]}, {}, "invalid-argument", "act", "None"),
    ],
)
def test_wrong_spaces_are_named(space, options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        read(space, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("space", "argument", "value"),
    [
        ({"lr": [0.0]}, "lr", "0.0"),
        ({"lr": [-1e-3]}, "lr", "-0.001"),
        ({"lr": [math.nan]}, "lr", "nan"),
        ({"lr": [math.inf]}, "lr", "inf"),
        ({"lr": ["fast"]}, "lr", "the text 'fast'"),
        ({"weight_decay": [-0.1]}, "weight_decay", "-0.1"),
        ({"beta1": [1.0]}, "beta1", "1.0"),
        ({"seed": [-1]}, "seed", "-1"),
    ],
)
def test_wrong_values_are_named(space, argument, value):
    with refuses("invalid-argument", argument=argument) as caught:
        read(space)
    assert str(caught.value).endswith(f"got {value}")


def test_wrong_sizes_and_optimizers_are_named():
    with refuses("invalid-argument", argument="widths"):
        read({"lr": 0.1}, widths=[0])
    with refuses("unknown-name", argument="optimizer"):
        read({"lr": 0.1}, optimizer="adamm")


def test_a_log_grid_has_a_largest_size():
    with refuses("invalid-argument", argument="n"):
        log_grid(1e-4, 1.0, 10**9)
