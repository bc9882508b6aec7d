"""A dict that cannot be changed."""

from typing import NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")

READ_ONLY = "this mapping is read-only; copy it with dict(...) and change the copy"


class FrozenDict(dict[K, V]):
    """A dict that can be read, compared, hashed and copied, but not changed."""

    def __setitem__(self, *_: object) -> NoReturn:
        raise TypeError(READ_ONLY)

    def __delitem__(self, *_: object) -> NoReturn:
        raise TypeError(READ_ONLY)

    def __ior__(self, *_: object) -> "FrozenDict[K, V]":
        raise TypeError(READ_ONLY)

    def update(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(READ_ONLY)

    def pop(self, *_: object) -> NoReturn:
        raise TypeError(READ_ONLY)

    def popitem(self) -> NoReturn:
        raise TypeError(READ_ONLY)

    def clear(self) -> NoReturn:
        raise TypeError(READ_ONLY)

    def setdefault(self, *_: object) -> NoReturn:
        raise TypeError(READ_ONLY)

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type["FrozenDict[K, V]"], tuple[dict[K, V]]]:
        return FrozenDict, (dict(self),)
