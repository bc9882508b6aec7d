"""Old names of modules work, warn, and lead to the same module object."""

import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import orderone
from orderone.core import renamed
from orderone.core.renamed import MODULES

PACKAGE = Path(orderone.__file__).parent


@pytest.fixture(autouse=True)
def _forget_old_names(monkeypatch):
    """Forget old names before each test: a module warns once in a process, when it is loaded."""
    for old in MODULES:
        monkeypatch.delitem(sys.modules, old, raising=False)
        package, _, name = old.rpartition(".")
        if package in sys.modules:
            vars(sys.modules[package]).pop(name, None)


@pytest.mark.parametrize(
    "old",
    [
        "orderone.planning.seeding",
        "orderone.sweeping.sinks",
        "orderone.sweeping.stacked.errors",
        "orderone.theory.kernels.given",
    ],
)
def test_an_old_name_warns_and_is_the_same_module(old):
    with pytest.warns(DeprecationWarning, match="was renamed") as caught:
        module = import_module(old)
    new = MODULES[old]
    assert module is sys.modules[new]
    assert module.__name__ == new
    assert f"{old} was renamed to {new};" in str(caught[0].message)


def test_an_import_from_the_package_works():
    with pytest.warns(DeprecationWarning, match=r"orderone\.training\.sinks"):
        from orderone.sweeping import sinks  # pyright: ignore[reportAttributeAccessIssue]
    assert sinks.__name__ == "orderone.training.sinks"


def source(module):
    """Return the file of a module."""
    return PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")


@pytest.mark.parametrize("old", MODULES)
def test_the_old_file_is_gone_and_the_new_file_exists(old):
    assert not source(old).exists()
    assert source(MODULES[old]).exists()


def test_other_modules_are_left_alone():
    assert find_spec("orderone.sweeping.no_such_module") is None


def test_the_finder_is_installed_once():
    renamed.install()
    finders = [finder for finder in sys.meta_path if type(finder).__name__ == "_RenamedFinder"]
    assert len(finders) == 1


def test_the_warning_names_the_line_of_the_user(tmp_path):
    """Python shows a DeprecationWarning only if it points into the user's own script."""
    script = tmp_path / "mine.py"
    script.write_text("import json\nfrom orderone.sweeping.schedule import schedule\n")
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert result.returncode == 0, result.stderr
    assert f"{script}:2: DeprecationWarning: orderone.sweeping.schedule" in result.stderr
