"""Identity of trials: equal settings and code give equal keys, and others give other keys."""

import functools
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sweep_subjects import batch, mlp
from torch import nn

from orderone.core.canonical import canonical
from orderone.sweeping.job import Job
from orderone.sweeping.trial import Trial
from orderone.training.fingerprint import identity
from orderone.training.source import read_source

SCALARS = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.booleans(),
)


def job(**changed) -> Job:
    return Job(
        **(
            {"build": mlp, "data": read_source(batch), "steps": 3, "base_sizes": {"width": 8}}
            | changed
        )
    )


@given(st.dictionaries(st.text(max_size=5), SCALARS, max_size=5))
def test_the_key_does_not_depend_on_order_and_survives_json(settings):
    shuffled = dict(reversed(settings.items()))
    assert Trial(settings).key == Trial(shuffled).key == Trial(json.loads(canonical(settings))).key


@given(st.floats(1e-12, 1e3), st.floats(1e-12, 1e3))
def test_learning_rates_that_differ_at_all_are_different_trials(one, other):
    assert (Trial({"lr": one}).key == Trial({"lr": other}).key) == (one == other)


def test_nan_is_not_a_setting():
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
def test_settings_that_change_results_change_the_fingerprint(changed):
    assert job(**changed).fingerprint != job().fingerprint


@pytest.mark.parametrize(
    "changed",
    [{"device": "cuda"}, {"report_every": 7}, {"together": 3}, {"checkpoint_seconds": 1.0}],
)
def test_execution_settings_do_not_change_the_fingerprint(changed):
    assert job(**changed).fingerprint == job().fingerprint


def test_a_name_replaces_the_code_in_the_fingerprint():
    assert (
        job(name="mine").fingerprint
        == job(name="mine", build=lambda width: nn.Linear(width, 1)).fingerprint
    )


def made(size):
    def build(width):
        return nn.Linear(width, size)

    return build


def test_functions_differ_by_code_captured_values_and_arguments():
    several = [
        made(1),
        made(2),
        functools.partial(mlp, depth=1),
        functools.partial(mlp, depth=2),
        mlp,
    ]
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


@pytest.fixture
def script(tmp_path: Path, monkeypatch):
    """Return a function that imports a text as the module `script`."""
    numbers = count()

    def run(text: str) -> Any:
        (path := tmp_path / f"script_{next(numbers)}.py").write_text(text)
        spec: Any = spec_from_file_location("script", path)
        monkeypatch.setitem(sys.modules, "script", module := module_from_spec(spec))
        spec.loader.exec_module(module)
        return module

    return run


def test_the_identity_of_build_includes_what_it_uses(script):
    def fingerprint(size=1, inside=2, comment=""):
        return identity(script(SCRIPT.format(size=size, inside=inside, comment=comment)).build)

    first = fingerprint()
    assert fingerprint(comment="  # a remark") == first
    assert fingerprint(inside=3) != first
    assert fingerprint(size=2) != first


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("X = torch.full((3,), 1.0)", "X = torch.full((3,), 2.0)"),
        ("X = np.ones(3)", "X = np.zeros(3)"),
        ("X = {'act': 'tanh'}", "X = {'act': 'relu'}"),
        ("X = {'act': torch.tanh}", "X = {'act': torch.relu}"),
        ("X = {'act': nn.Tanh}", "X = {'act': nn.ReLU}"),
        ("X = torch.tanh", "X = torch.relu"),
        ("X = [1, [2, (3,)]]", "X = [1, [2, (4,)]]"),
        ("X = torch.float32", "X = torch.float64"),
        ("X = SimpleNamespace(act='tanh')", "X = SimpleNamespace(act='relu')"),
        (
            "X = nn.CrossEntropyLoss(label_smoothing=0.0)",
            "X = nn.CrossEntropyLoss(label_smoothing=0.1)",
        ),
        ("class X:\n    size = 1", "class X:\n    size = 2"),
        (
            "class A:\n    def go(self): return 1\nclass X(A): pass",
            "class A:\n    def go(self): return 2\nclass X(A): pass",
        ),
        (
            "class A:\n    def go(self): return 1\nX = A()",
            "class A:\n    def go(self): return 2\nX = A()",
        ),
        ("@functools.lru_cache\ndef X(): return 1", "@functools.lru_cache\ndef X(): return 2"),
        ("X = functools.partial(max, 1)", "X = functools.partial(max, 2)"),
    ],
)
def test_the_identity_of_a_function_includes_its_globals(before, after, script):
    text = (
        "import functools\nfrom types import SimpleNamespace\nimport numpy as np\nimport"
        " torch\nfrom torch import nn\n"
    )
    text += "{}\nUNUSED = {}\ndef data(step, seed): return X\n"
    first = identity(script(text.format(before, 1)).data)
    assert identity(script(text.format(before, 2)).data) == first
    assert identity(script(text.format(after, 1)).data) != first


CALLABLES = """
class Build:
    def __init__(self): self.depth = 2
    def __call__(self, width): return {inside}
class Data:
    def batch(self, step, seed): return {inside}
build, data = Build(), Data()
"""


def test_the_identity_of_an_object_includes_its_class(script):
    def identities(inside):
        made = script(CALLABLES.format(inside=inside))
        named = job(data=read_source(made.data), name="mine").fingerprint
        return canonical(identity(made.build)), canonical(read_source(made.data).name), named

    one, same, other = identities(1), identities(1), identities(2)
    assert one == same
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert one[2] == other[2]  # the name of the job replaces the code of a task without a name


def test_functions_that_all_use_each_other_are_described_once(script):
    names = [f"f{i}" for i in range(30)]
    module = script(
        "\n".join(
            f"def {name}(n): return {' + '.join(f'{other}(n - 1)' for other in names)}"
            for name in names
        )
    )
    assert canonical(identity(module.f0))


def test_the_order_of_sets_does_not_change_a_lambda():
    """The order of a set differs between processes; here 0 and 8 collide in a table of eight."""
    made: Any = lambda x: x in {0, 8}  # noqa: E731
    sets = [frozenset([0, 8]), frozenset([8, 0]), frozenset([0, 16])]
    assert repr(sets[0]) != repr(sets[1])
    codes = [made.__code__.replace(co_consts=(None, (kind,))) for kind in sets]
    keys = [canonical(identity(FunctionType(code, {}, "<lambda>"))) for code in codes]
    assert keys[0] == keys[1] != keys[2]
