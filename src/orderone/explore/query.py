"""Read a query string as numbers and words.

A name that is missing, repeated or unknown raises an InputError.
"""

from collections.abc import Collection
from urllib.parse import parse_qsl

from orderone.core.errors import InputError, one_of

LONGEST = 120  # characters of one value: no number or name needs more


class Query:
    """The query of a page. Values are read by name; `done` reports those that were not read."""

    def __init__(self, text: str):
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=32)
        self._values = dict(pairs)
        for name, value in pairs:
            longest = max(len(name), len(value))
            if longest > LONGEST:
                message = (
                    f"{name[:20]}: expected a name or a number of at most {LONGEST} characters,"
                    f" got {longest}"
                )
                raise InputError(message, argument=name[:20])
        self._unread: set[str] = set()
        for name, _ in pairs:
            if name in self._unread:
                raise InputError(f"{name}: expected one value, got several", argument=name)
            self._unread.add(name)

    def word(self, name: str, known: Collection[str] = ()) -> str:
        """Return the text of a value; if `known` is not empty, it must be one of those words."""
        if name not in self._values:
            message = f"{name}: expected a value, got none; add {name}=... to the query"
            raise InputError(message, argument=name)
        self._unread.discard(name)
        text = self._values[name].strip()
        if known:
            return one_of(text, known, name)
        return text

    def number(self, name: str) -> float:
        """Return any float, also nan and infinity: the caller checks the range."""
        text = self.word(name)
        try:
            return float(text)
        except ValueError:
            message = f"{name}: expected a number, got {text!r}"
            raise InputError(message, argument=name) from None

    def whole(self, name: str) -> int:
        """Return a whole number."""
        text = self.word(name)
        try:
            return int(text)
        except ValueError:
            message = f"{name}: expected a whole number, got {text!r}"
            raise InputError(message, argument=name) from None

    def flag(self, name: str) -> bool:
        """Return True for 1, False for 0."""
        return self.word(name, ("0", "1")) == "1"

    def done(self) -> None:
        """Raise an InputError if a value was not read."""
        if self._unread:
            name = min(self._unread)
            raise InputError(f"{name}: the view has no such value; leave it out", argument=name)
