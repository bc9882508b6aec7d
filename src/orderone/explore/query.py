"""Read a query string as numbers and words.

A name that is missing, repeated or unknown is a ValueError.
"""

from collections.abc import Collection
from urllib.parse import parse_qsl

from orderone.core.errors import one_of

LONGEST = 120  # characters of one value: no number or name needs more


class Query:
    """The query of a page. Values are read by name; `done` reports those that were not read."""

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
        self._unread: set[str] = set()
        for name, _ in pairs:
            if name in self._unread:
                raise ValueError(f"{name}: expected one value, got several; give one")
            self._unread.add(name)

    def word(self, name: str, known: Collection[str] = ()) -> str:
        """Return the text as it is; with `known`, one of those."""
        if name not in self._values:
            raise ValueError(f"{name}: expected a value, got none; add {name}=... to the query")
        self._unread.discard(name)
        text = self._values[name].strip()
        if known:
            return one_of(text, known, name)
        return text

    def number(self, name: str) -> float:
        """Return a float of any size, nan and infinities included: the caller checks it."""
        text = self.word(name)
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name}: expected a number, got {text!r}") from None

    def whole(self, name: str) -> int:
        """Return a whole number."""
        text = self.word(name)
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}: expected a whole number, got {text!r}") from None

    def flag(self, name: str) -> bool:
        """Return True for 1, False for 0."""
        return self.word(name, ("0", "1")) == "1"

    def done(self) -> None:
        """Raise a ValueError if a value was not read."""
        if self._unread:
            raise ValueError(f"{min(self._unread)}: expected nothing of this name; leave it out")
