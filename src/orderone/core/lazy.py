"""Submodules that load when they are first used: `import orderone` stays fast, and needs no torch."""

from collections.abc import Callable
from importlib import import_module


def lazy_submodules(package: str, names: tuple[str, ...]) -> Callable[[str], object]:
    """A module `__getattr__` that imports `package.name` on first access."""

    def __getattr__(name: str) -> object:  # noqa: N807
        if name in names:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")

    return __getattr__
