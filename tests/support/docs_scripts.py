"""Import the scripts of docs/, which are no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def load_script(name: str) -> ModuleType:
    """Return the module of docs/NAME.py."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
