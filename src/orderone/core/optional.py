"""Packages that not everybody needs are imported when somebody does."""

from importlib import import_module
from typing import Any


def need(module: str, extra: str, purpose: str) -> Any:
    """The module, or an ImportError with the command that brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{package} is needed {purpose}; pip install 'orderone[{extra}]'"
        ) from error
