"""Names that load when they are first used: `import orderone` is fast and needs no torch."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, names: Mapping[str, str | None]) -> Callable[[str], object]:
    """Return a `__getattr__` for the module `package`.

    Each name maps to the submodule that defines it, or to None if it is a submodule itself. A
    loaded name is stored in the package: the next access finds an ordinary attribute.
    """

    def __getattr__(name: str) -> object:  # noqa: N807
        if name not in names:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}"
            )
        home = names[name]
        if home is None:
            return import_module(f"{package}.{name}")  # the import system stores it
        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
