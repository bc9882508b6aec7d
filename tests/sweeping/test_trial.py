"""What makes two trials the same, and what makes them different."""

import functools
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_subjects import batch, mlp
from torch import nn

from orderone.sweeping.fingerprint import identity
from orderone.sweeping.job import Job
from orderone.sweeping.source import read_source
from orderone.sweeping.trial import Trial, canonical

SCALARS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5), st.booleans())


def job(**changed) -> Job:
    return Job(**({"build": mlp, "data": read_source(batch), "steps": 3, "base_sizes": {"width": 8}} | changed))


@given(st.dictionaries(st.text(max_size=5), SCALARS, max_size=5))
def test_the_key_is_that_of_the_values_in_any_order_and_survives_json(settings):
    shuffled = dict(reversed(settings.items()))
    assert Trial(settings).key == Trial(shuffled).key == Trial(json.loads(canonical(settings))).key


@given(st.floats(1e-12, 1e3), st.floats(1e-12, 1e3))
def test_learning_rates_that_differ_at_all_are_different_trials(one, other):
    assert (Trial({"lr": one}).key == Trial({"lr": other}).key) == (one == other)


def test_nan_is_no_setting():
    with pytest.raises(ValueError, match="not JSON compliant"):
        _ = Trial({"lr": float("nan")}).key


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 4},
        {"schedule": "cosine"},
        {"warmup": 1},
        {"clip": 1.0},
        {"accumulate": 2},
        {"precision": "float64"},
        {"base_sizes": {"width": 16}},
        {"plan_options": {"gauge": "unit"}},
        {"build": functools.partial(mlp, depth=2)},
        {"loss": lambda output, target: output.sum()},
        {"data": read_source(batch(0, 0))},
        {"name": "mine"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_changes_results_changes_the_fingerprint(changed):
    assert job(**changed).fingerprint != job().fingerprint


@pytest.mark.parametrize(
    "changed", [{"device": "cuda"}, {"report_every": 7}, {"together": 3}, {"checkpoint_seconds": 1.0}]
)
def test_how_it_is_run_does_not(changed):
    assert job(**changed).fingerprint == job().fingerprint


def test_a_name_of_the_users_own_stands_for_the_code():
    assert job(name="mine").fingerprint == job(name="mine", build=lambda width: nn.Linear(width, 1)).fingerprint


def made(size):
    def build(width):
        return nn.Linear(width, size)

    return build


def test_functions_differ_by_code_captured_values_and_arguments():
    several = [made(1), made(2), functools.partial(mlp, depth=1), functools.partial(mlp, depth=2), mlp]
    several += [lambda width: nn.Linear(width, 1), lambda width: nn.Linear(width, 2)]
    assert len({canonical(identity(function)) for function in several}) == len(several)
    assert identity(made(3)) == identity(made(3))
    assert identity(lambda w: nn.Linear(w, 1)) == identity(lambda w: nn.Linear(w, 1))


def test_a_recursive_function_has_an_identity():
    def factorial(n):
        return n * factorial(n - 1) if n else 1

    assert canonical(identity(factorial))


SCRIPT = """
SIZE = {size}
class Net:{comment}
    def go(self): return helper() + {inside}
def helper(): return SIZE
def build(width): return Net().go()
"""


def test_a_script_is_looked_through_to_what_its_build_uses(tmp_path: Path, monkeypatch):
    numbers = count()

    def fingerprint(size=1, inside=2, comment=""):
        (path := tmp_path / f"script_{next(numbers)}.py").write_text(
            SCRIPT.format(size=size, inside=inside, comment=comment)
        )
        found: Any = spec_from_file_location("script", path)
        monkeypatch.setitem(sys.modules, "script", module := module_from_spec(found))
        found.loader.exec_module(module)
        return identity(module.build)

    first = fingerprint()
    assert fingerprint(comment="  # a remark") == first
    assert fingerprint(inside=3) != first
    assert fingerprint(size=2) != first
