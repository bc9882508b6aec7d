"""Errors about what a user passed, and the codes at the end of messages.

A message says what was expected, what was passed, and what to do. Its code stays when the sentence
is reworded.

`InputError` is a ValueError, so that `except ValueError` catches it.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")

LONGEST_ERROR = 300  # characters of an error of other code within a message
# The message says everything; printing this code would add nothing.
SELF_EXPLANATORY = "invalid-argument"
_CODE_AT_THE_END = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)+)\]$")


def with_code(message: str, code: str) -> str:
    """Return `message` with its code at the end."""
    return f"{message} [{code}]"


def code_of(message: str) -> str | None:
    """Return the code at the end of a message, None if there is none."""
    match = _CODE_AT_THE_END.search(message)
    if match is None:
        return None
    return match.group(1)


def without_code(message: str) -> str:
    """Return `message` without the code at its end."""
    return _CODE_AT_THE_END.sub("", message)


def brief(error: BaseException) -> str:
    """Return the class and the first line of an error, for a note; torch lists its kernels."""
    return f"{type(error).__name__}: {shortened(str(error))}"


def shortened(text: str) -> str:
    """Return the first line of a text of other code, cut off if it is long; a code stays."""
    first = next(iter(text.splitlines()), "")
    if len(first) <= LONGEST_ERROR:
        return first
    cut = f"{without_code(first)[:LONGEST_ERROR]}..."
    code = code_of(first)
    if code is None:
        return cut
    return with_code(cut, code)


def hint_on_codes(messages: Iterable[str]) -> list[str]:
    """Return the line that says how to look up a code, [] if no message ends with one."""
    if any(code_of(message) for message in messages):
        return ["orderone explain CODE tells more about a [code]"]
    return []


class InputError(ValueError):
    """A value that orderone cannot use.

    `code` names the kind of error (see `orderone.core.codes`); `argument` names the argument of
    the function that the user called, where there is one.
    """

    def __init__(
        self, message: str, code: str = SELF_EXPLANATORY, *, argument: str | None = None
    ) -> None:
        super().__init__(message, code, argument)
        self.message = message
        self.code = code
        self.argument = argument

    def __str__(self) -> str:
        if self.code == SELF_EXPLANATORY:
            return self.message
        return with_code(self.message, self.code)

    def __reduce__(self) -> tuple[object, ...]:
        """Restore all fields after pickling: errors travel between processes."""
        return _restore_error, (type(self), self.message, self.code, self.argument)


def _restore_error(
    kind: type[InputError], message: str, code: str, argument: str | None
) -> InputError:
    return kind(message, code, argument=argument)


def as_passed(value: object) -> str:
    """Return a value for a message that expected a number; text gets a remedy."""
    if not isinstance(value, str):
        return repr(value)
    try:
        float(value)
    except ValueError:
        return f"the text {value!r}"
    return f"the text {value!r}; remove the quotes"


def one_of(value: object, known: Iterable[str], kind: str, also: Iterable[str] = ()) -> str:
    """Return the name in `known` that equals `value` in lower case.

    Otherwise raise an InputError that lists the names and suggests the nearest. Names of `also` are
    suggested, too.
    """
    known = tuple(known)
    hint = ""
    if isinstance(value, str):
        name = value.lower()
        if name in known:
            return name
        near = get_close_matches(name, (*known, *also), n=1)
        if near:
            hint = f"; did you mean {near[0]!r}?"
    names = ", ".join(known)
    message = f"unknown {kind}: expected one of {names}; got {value!r}{hint}"
    raise InputError(message, "unknown-name", argument=kind)


def switch(value: object, argument: str) -> bool:
    """Return whether `value` is true; refuse values without a truth value, such as arrays."""
    try:
        return bool(value)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"{argument}: expected True or False, got {value!r:.60}"
        raise InputError(message, "wrong-type", argument=argument) from error


def instance(value: object, of: type[T], name: str, remedy: str) -> T:
    """Return `value` if it is an instance of `of`; otherwise raise an InputError."""
    if isinstance(value, of):
        return value
    article = "an" if of.__name__[0] in "AEIOU" else "a"
    message = f"{name}: expected {article} {of.__name__}, got {value!r}; {remedy}"
    raise InputError(message, "wrong-type", argument=name)


def function(value: object, name: str, what: str) -> None:
    """Raise an InputError unless `value` is a function or None."""
    if value is not None and not callable(value):
        message = f"{name}: expected a function {what}, got {value!r}"
        raise InputError(message, "wrong-type", argument=name)
