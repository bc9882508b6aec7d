"""An immutable dict."""

from typing import NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")

FIXED = "these values are fixed; make a new one from dict(...)"


class FrozenDict(dict[K, V]):
    """A dict that can be looked up, compared, hashed and copied, but not changed."""

    def __setitem__(self, *_: object) -> NoReturn:
        raise TypeError(FIXED)

    def __delitem__(self, *_: object) -> NoReturn:
        raise TypeError(FIXED)

    def __ior__(self, *_: object) -> "FrozenDict[K, V]":
        raise TypeError(FIXED)

    def update(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(FIXED)

    def pop(self, *_: object) -> NoReturn:
        raise TypeError(FIXED)

    def popitem(self) -> NoReturn:
        raise TypeError(FIXED)

    def clear(self) -> NoReturn:
        raise TypeError(FIXED)

    def setdefault(self, *_: object) -> NoReturn:
        raise TypeError(FIXED)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type["FrozenDict[K, V]"], tuple[dict[K, V]]]:
        return FrozenDict, (dict(self),)
