"""A query string as numbers and words. What is missing, twice there or nobody's is a ValueError
that names it."""

from collections.abc import Collection
from urllib.parse import parse_qsl

from orderone.core.errors import one_of

LONGEST = 120  # characters of one value: no number or name needs more


class Query:
    """What a page asks for. Every value is read by name; `done` tells of those that nobody has
    read."""

    def __init__(self, text: str):
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        self._values = dict(pairs)
        for name, value in pairs:
            longest = max(len(name), len(value))
            if longest > LONGEST:
                raise ValueError(
                    f"{name[:20]}: expected at most {LONGEST} characters, got {longest}; give a"
                    " name or a number"
                )
        if len(self._values) < len(pairs):
            twice = next(name for k, (name, _) in enumerate(pairs) if name in dict(pairs[:k]))
            raise ValueError(f"{twice}: expected one value, got several; give one")
        self._unread = set(self._values)

    def word(self, name: str, known: Collection[str] = ()) -> str:
        """The text as it is; with `known`, one of those."""
        if name not in self._values:
            raise ValueError(f"{name}: expected a value, got none; add {name}=... to the query")
        self._unread.discard(name)
        text = self._values[name].strip()
        return one_of(text, known, name) if known else text

    def number(self, name: str) -> float:
        """A float of any size, nan and infinities included: whoever uses it says what it may be."""
        text = self.word(name)
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name}: expected a number, got {text!r}") from None

    def whole(self, name: str) -> int:
        text = self.word(name)
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}: expected a whole number, got {text!r}") from None

    def flag(self, name: str) -> bool:
        return self.word(name, ("0", "1")) == "1"

    def done(self) -> None:
        """A ValueError if something is left that no one asked for."""
        if self._unread:
            raise ValueError(f"{min(self._unread)}: expected nothing of this name; leave it out")
