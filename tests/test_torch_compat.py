"""Private names of torch are used in orderone.torch_compat only."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from runpy import run_path

import pytest
import torch
from support.errors import refuses
from support.sweep_subjects import batch, mlp
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, SequentialLR

import orderone
from orderone import sweep, torch_compat
from orderone.core import torch_version
from orderone.training.stacked import capability

SOURCE = Path(orderone.__file__).parent
COMPAT = SOURCE / "torch_compat.py"
# Objects of torch that the library handles: their private attributes count as names of torch.
OPTIMIZER = torch.optim.SGD(nn.Linear(1, 1).parameters())
HANDLED = (
    torch,
    torch.zeros(()),
    torch.zeros(()).untyped_storage(),
    torch.ops.aten.add.Tensor,
    OPTIMIZER,
    nn.LSTM(1, 1),
    nn.MultiheadAttention(1, 1),
    SequentialLR(OPTIMIZER, [ConstantLR(OPTIMIZER)], []),
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@cache
def private_attributes() -> set[str]:
    names = {name for handled in HANDLED for name in dir(handled) if is_private(name)}
    return names - set(dir(object))


def names_bound_to_torch(tree: ast.AST) -> set[str]:
    """Return the names by which a file knows torch and its modules, functions and classes."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound |= {
                alias.asname or alias.name.partition(".")[0]
                for alias in node.names
                if alias.name.partition(".")[0] == "torch"
            }
        if isinstance(node, ast.ImportFrom) and _is_torch(node.module):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound


def private_names_of_torch(source: str) -> Iterator[str]:
    """Yield each use of a private name of torch, with its line."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    of_torch = names_bound_to_torch(tree)
    of_objects = private_attributes()
    by_string = of_objects - set(dir(torch)) - set(dir(torch.Tensor))  # those name operations
    own = {node.attr for node in nodes if _is_stored_on_self(node)}  # pyright: ignore[reportAttributeAccessIssue]
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_torch(alias.name) and any(map(is_private, alias.name.split("."))):
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and _is_torch(node.module):
            for alias in node.names:
                if any(map(is_private, [*str(node.module).split("."), alias.name])):
                    yield f"line {node.lineno}: from {node.module} import {alias.name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = node.attr in own and _is_self(node.value)
            if _root(node) in of_torch or (node.attr in of_objects and not is_own):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_module = _is_torch(node.value) and re.fullmatch(r"[a-z.]+\._\w+", node.value)
            if is_module or node.value in by_string:
                yield f"line {node.lineno}: {node.value!r}"


def _is_torch(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] == "torch"


def _is_stored_on_self(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
    )


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def test_no_other_file_uses_a_private_name_of_torch():
    files = [path for path in SOURCE.rglob("*.py") if path != COMPAT]
    uses = {
        str(path.relative_to(SOURCE)): list(private_names_of_torch(path.read_text()))
        for path in files
    }
    assert len(files) > 300
    assert {path: lines for path, lines in uses.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from torch._C import _functorch",
        "import torch._dynamo",
        "from torch.nn.utils.parametrizations import _WeightNorm",
        "import torch\ntorch._foreach_add_(x, y)",
        "import torch\ndef f() -> torch._ops.OpOverload: ...",
        "from torch.nn.utils import parametrizations\nparametrizations._WeightNorm",
        "tensor._version",
        "for p in module._parameters.values(): ...",
        "import sys\n'torch._dynamo' in sys.modules",
        "getattr(module, '_forward_hooks')",
    ],
)
def test_every_kind_of_use_is_detected(source):
    assert list(private_names_of_torch(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "self._rows = 1\nself._rows",
        "step._replace(number=1)",
        "'a sentence on torch._dynamo'",
    ],
)
def test_other_code_is_not_reported(source):
    assert not list(private_names_of_torch(source))


@pytest.mark.parametrize("name", torch_compat.__all__)
def test_torch_has_what_the_library_needs(name):
    assert getattr(torch_compat, name) is not None


def test_private_attributes_are_read_from_real_objects():
    module = nn.BatchNorm1d(2)
    hook = module.register_forward_pre_hook(lambda *_: None, with_kwargs=False)
    assert list(torch_compat.parameter_registry(module)) == ["weight", "bias"]
    assert "running_mean" in torch_compat.buffer_registry(module)
    assert torch_compat.module_registry(nn.Sequential(module)) == {"0": module}
    assert torch_compat.forward_hook_registry(module) == {}
    assert list(torch_compat.forward_pre_hook_registry(module)) == [hook.id]
    assert torch_compat.forward_pre_hooks_with_kwargs(module) == {}
    tensor = torch.zeros(2)
    before = torch_compat.version_counter(tensor)
    view = tensor.zero_()[1:]
    assert torch_compat.version_counter(tensor) == before + 1
    storages = [x.untyped_storage() for x in (tensor, view, torch.zeros(2))]
    first, second, other = map(torch_compat.storage_id, storages)
    assert first == second != other
    schema = torch_compat.operator_schema(torch.ops.aten.add.Tensor)
    assert schema.name == "aten::add"


# --- versions -------------------------------------------------------------------------------------


def test_an_old_torch_is_refused_with_the_command_that_installs_another():
    with pytest.raises(ImportError) as caught:
        torch_version.check_version("2.10.1+cu128")
    assert "2.10.1" in str(caught.value)
    assert "pip install 'torch>=2.11,<2.16'" in str(caught.value)


def test_a_torch_newer_than_all_tested_ones_gives_a_warning():
    with pytest.warns(UserWarning, match=r"2\.16\.0"):
        torch_version.check_version("2.16.0.dev20261101+cu130")


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.3", "a version of one's own"])
def test_tested_versions_are_accepted_without_a_word(version):
    torch_version.check_version(version)


def test_the_tested_range_is_that_of_the_package():
    settings = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())
    required = torch_version.install_command().split("'")[1]
    assert required in settings["project"]["dependencies"]


def test_a_private_name_that_torch_lacks_is_reported_with_the_tested_versions(monkeypatch):
    monkeypatch.delattr(torch, "_standard_gamma")
    with pytest.raises(ImportError, match="_standard_gamma") as caught:
        run_path(str(COMPAT))
    assert torch_version.tested_range() in str(caught.value)


def test_a_torch_that_cannot_stack_is_reported_before_the_sweep(monkeypatch):
    def broken(*_):
        raise RuntimeError("You tried to vmap over something")

    monkeypatch.setattr(capability, "_deviation", broken)
    capability.stacking_failure.cache_clear()
    settings = {"space": {"lr": [0.1, 0.2]}, "widths": [4], "steps": 1, "progress": False}
    try:
        with pytest.warns(UserWarning, match="vmap"):
            study = sweep(mlp, data=batch, **settings)
        assert study.frame.loss.notna().all()
        with refuses("torch-cannot-stack", argument="stacked"):
            sweep(mlp, data=batch, stacked=True, **settings)
    finally:
        capability.stacking_failure.cache_clear()
