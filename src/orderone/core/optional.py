"""Optional dependencies, imported when they are needed."""

from importlib import import_module
from types import ModuleType


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a module; if that fails, raise an ImportError with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{package} is needed {purpose}; run: pip install 'orderone[{extra}]'", name=package
        ) from error


def need_package(module: str, package: str) -> ModuleType:
    """Import a module of another project; if that fails, raise an ImportError that names it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} cannot be imported ({error}); it belongs to the package {package}"
        ) from error
