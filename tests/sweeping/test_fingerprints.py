"""Fingerprints are equal in every process, and differ where the data or the code differ."""

import json
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from orderone.core.canonical import canonical, digest
from orderone.core.file_digests import file_digests
from orderone.training.fingerprint import identity
from orderone.training.source import read_source
from orderone.training.tensor_content import content_of

# every function `case_...` uses something whose order, text or content may depend on the process
CASES = """
import collections, dataclasses, datetime, functools, re, weakref
import numpy as np
from torch import nn

def square(x): return x * x
def cube(x): return x ** 3
def tanh(x): return x
class Net(nn.Module): pass
class Other: pass

FUNCTIONS = {square, cube, tanh, max, nn.ReLU, Net}
BY_FUNCTION = {square: 1, cube: 2, Net: 3, nn.GELU: 4}
BY_PAIR = {(square, frozenset({"a", "b"})): {"x", "y", "z"}}
OBJECTS = np.array([square, {"a", "b", "c"}, Net, None, "text"], dtype=object)
RECORDS = np.array([(1, square)], dtype=[("number", int), ("function", object)])
OF_SETS = {frozenset({"a", "b"}), frozenset({"c", "d", square})}
MEMO = {}
WEAK = weakref.WeakSet([Net, Other])
SLICE = slice(square, None)
PATTERN = re.compile("a+")
DEFAULT = collections.defaultdict(set, {cube: {"p", "q", "r"}})
def in_a_circle(x): return CIRCLE
CIRCLE = {in_a_circle, square}

def case_set(width): return FUNCTIONS
def case_keys(width): return BY_FUNCTION, BY_PAIR
def case_objects(width): return OBJECTS, RECORDS
def case_of_sets(width): return OF_SETS, WEAK, SLICE, PATTERN, DEFAULT
def case_circle(width): return CIRCLE
def case_memo(width):
    if (hash(str(width)), width) not in MEMO:
        MEMO[hash(str(width)), width] = square(width)
    return MEMO[hash(str(width)), width]
def case_default(width, known={}, *, more={}):
    known[width] = known.get(width) or square(width)
    return known[width] + more.setdefault(id(width), square(width))

def remembered(function):
    results = {}
    @functools.wraps(function)
    def around(*arguments):
        key = hash((function.__name__, *arguments))
        if key not in results:
            results[key] = function(*arguments)
        return results[key]
    return around
@remembered
def case_decorated(width): return width

class Cached:
    def __init__(self): self.known = {}
    def __call__(self, width):
        try:
            return self.known[hash(str(width))]
        except KeyError:
            value = width + 1
            self.known[hash(str(width))] = value
            return value
    @functools.cached_property
    def size(self): return hash("size")
@dataclasses.dataclass
class Table:
    rows: dict = dataclasses.field(default_factory=dict)
    def __call__(self, width):
        if hash(str(width)) not in self.rows:
            self.rows[hash(str(width))] = [width]
        return self.rows[hash(str(width))]
case_object, case_table = Cached(), Table()
case_object(3); case_object(4); case_object.size; case_table(5)

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = {"a", "b", "c", "d"}
        self.functions = [square, {cube, tanh}]
MODULE = Module()
def case_module(width): return MODULE
def case_closure():
    kinds = {"relu", "tanh", "gelu"}
    def build(width): return kinds, square
    return build
case_closure = case_closure()

for called in (case_memo, case_default, case_decorated):
    for name in {1, 2, 3, "4" "5"} if called is case_decorated else (1, 2, 3): called(name)
"""
PRINT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import cases
from orderone.core.canonical import digest
from orderone.training.fingerprint import identity
ids = {name: digest(identity(value)) for name, value in vars(cases).items() if name[:5] == "case_"}
print(json.dumps(ids))
"""


def fingerprints(folder: Path, hash_seed: int) -> dict[str, str]:
    """Return the fingerprints of all cases in a new process."""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", PRINT, str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_fingerprints_are_equal_in_processes_with_other_hash_seeds(tmp_path):
    (tmp_path / "cases.py").write_text(CASES)
    first = fingerprints(tmp_path, 1)
    assert len(first) == len(set(first.values())) == 12
    assert fingerprints(tmp_path, 2) == first


@pytest.fixture
def script(tmp_path: Path, monkeypatch):
    """Return a function that imports a text as a module."""
    numbers = count()

    def run(text: str) -> Any:
        from importlib.util import module_from_spec, spec_from_file_location

        path = tmp_path / f"script_{next(numbers)}.py"
        path.write_text(text)
        spec: Any = spec_from_file_location("script", path)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "script", module)
        spec.loader.exec_module(module)
        return module

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("X = {len: 1}", "X = {max: 1}"),
        ("X = {len, max}", "X = {len, min}"),
        ("X = {1: 'a'}", "X = {'1': 'a'}"),
        ("X = np.array([len, 1], dtype=object)", "X = np.array([max, 1], dtype=object)"),
        ("X = datetime.date(2024, 1, 1)", "X = datetime.date(2024, 1, 2)"),
        ("X = re.compile('a')", "X = re.compile('b')"),
        ("X = collections.deque([1, 2])", "X = collections.deque([1, 3])"),
        ("X = {}\nX['lr'] = 1", "X = {}\nX['lr'] = 2"),  # settings, not a memo
        ("X = Module(torch.tanh)", "X = Module(torch.relu)"),
        ("X = decorated(0.1)(helper)", "X = decorated(0.2)(helper)"),
    ],
)
def test_values_that_differ_give_other_fingerprints(before, after, script):
    text = (
        "import collections, datetime, functools, re\nimport numpy as np, torch\n"
        "class Module(torch.nn.Module):\n"
        "    def __init__(self, act):\n        super().__init__()\n        self.act = act\n"
        "def decorated(p):\n    def decorate(f):\n        @functools.wraps(f)\n"
        "        def around(x): return f(x) * p\n        return around\n    return decorate\n"
        "def helper(x): return x\n"
        "{}\ndef build(width): return X\n"
    )
    first = canonical(identity(script(text.format(before)).build))
    assert canonical(identity(script(text.format(before)).build)) == first
    assert canonical(identity(script(text.format(after)).build)) != first


NOT_MEMOS = """
class Registry:
    def __init__(self): self.entries = {}
    def add(self, name, value):
        if name in self.entries: raise KeyError(name)
        self.entries[name] = value
REGISTRY = Registry()
OPTIONS = {}
def build(width):
    OPTIONS["size"] = OPTIONS.get("size") or width
    return REGISTRY, OPTIONS
"""


@pytest.mark.parametrize("change", ["REGISTRY.add('act', 'relu')", "OPTIONS['depth'] = 3"])
def test_settings_in_a_dict_that_code_fills_are_not_a_memo(change, script):
    module = script(NOT_MEMOS)
    before = canonical(identity(module.build))
    exec(change, vars(module))
    assert canonical(identity(module.build)) != before


# --- files ----------------------------------------------------------------------------------------


class Images(Dataset):
    """Reads one file for each sample, like the folder data sets of torchvision."""

    def __init__(self, root: Path, joined: bool):
        self.root = str(root)
        self.samples = [
            (str(path) if joined else path.name, 0) for path in sorted(root.glob("*.png"))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        name, label = self.samples[index]
        content = (Path(self.root) / name).read_bytes()
        return torch.tensor([float(content[0])]), label


@pytest.fixture
def images(tmp_path: Path, monkeypatch) -> Path:
    """A folder with 300 files: more than the samples that identify a data set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "images"
    root.mkdir()
    for number in range(300):
        (root / f"{number:03}.png").write_bytes(bytes([7, number % 251]))
    return root


@pytest.mark.parametrize("joined", [True, False])
def test_a_replaced_file_of_a_data_set_counts_as_other_data(images, joined):
    def name() -> str:
        return digest(read_source(Images(images, joined), 16).name)

    first = name()
    assert name() == first
    path = images / "101.png"
    before = path.stat()
    path.write_bytes(b"\x07\xfe")  # the same size and the same first byte
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # and the same time
    assert name() != first


def test_models_in_a_closure_differ_by_their_functions():
    class Net(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.act = act

    assert identity(Net(torch.relu)) != identity(Net(torch.tanh))
    assert identity(Net(torch.relu)) == identity(Net(torch.relu))


def test_digests_of_files_are_kept(images, monkeypatch):
    paths = sorted(images.glob("*.png"))
    old = time.time() - 100
    monkeypatch.setattr("orderone.core.file_digests.RECENT", 0)
    first = file_digests(paths)
    read: list[str] = []
    monkeypatch.setattr(
        "orderone.core.file_digests._digest", lambda path: read.append(path) or "new"
    )
    assert file_digests(paths) == first
    assert read == []
    os.utime(paths[3], (old, old))
    assert file_digests(paths) == [*first[:3], "new", *first[4:]]
    assert read == [str(paths[3])]


def test_digests_are_computed_where_none_can_be_kept(images, monkeypatch):
    blocked = images / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert len(set(file_digests(sorted(images.glob("*.png"))))) == 251


def test_content_of_an_expanded_entry():
    expanded = torch.full((), 2.0).expand(1)
    assert content_of(expanded) == content_of(torch.full((1,), 2.0))
    assert content_of(torch.full((), 2.0).expand(3)) == content_of(torch.full((3,), 2.0))
