"""Names that load when they are first used: `import orderone` stays fast, and needs no torch."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, names: Mapping[str, str | None]) -> Callable[[str], object]:
    """A module `__getattr__`: a name maps to the submodule that defines it, or to None if it is
    one."""

    def __getattr__(name: str) -> object:  # noqa: N807
        if name not in names:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}"
            )
        home = names[name]
        if home is None:
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{home}"), name)

    return __getattr__
