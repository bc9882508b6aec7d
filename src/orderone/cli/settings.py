"""Numbers on the command line: one value, a value per role or pattern, or several values to try."""

from typing import TYPE_CHECKING

from orderone.core.errors import InputError

if TYPE_CHECKING:
    from orderone.sweeping.space import LogGrid


def read_setting(text: str | None, name: str) -> float | dict[str, float] | None:
    """Return a number from 3e-3, or a mapping from default=3e-3,embedding=1e-2."""
    if text is None:
        return None
    if "=" not in text:
        return _number(text, name)
    mapping: dict[str, float] = {}
    for word in text.split(","):
        key, equals, value = word.rpartition("=")
        key = key.strip()
        if not equals or not key or key in mapping:
            raise _wrong(text, name)
        mapping[key] = _number(value, name)
    return mapping


def read_start(text: str | None) -> str | float | dict[str, str | float] | None:
    """Return the start from fan-in, or a mapping from default=fan-in,embedding=0.5,readout=zero."""
    if text is None or "=" not in text:
        return None if text is None else start_value(text)
    mapping: dict[str, str | float] = {}
    for word in text.split(","):
        key, equals, value = word.rpartition("=")
        key = key.strip()
        if not equals or not key or key in mapping:
            raise InputError(
                "init: expected a start, or starts for roles and patterns such as"
                f" default=fan-in,readout=zero (every key once); got {text!r}",
                argument="init",
            )
        mapping[key] = start_value(value)
    return mapping


def start_value(text: str) -> str | float:
    """Return a size, or the name of a start."""
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _wrong(text, name) from None


def _wrong(text: str, name: str) -> InputError:
    return InputError(
        f"{name}: expected a number, or numbers for roles and patterns such as"
        f" default=3e-3,embedding=1e-2 (every key once); got {text!r}",
        argument=name,
    )


def read_rules(**texts: str | None) -> dict[str, str | None]:
    """Return the rules that the user chose, by option of `plan`; the word none means no rule."""
    rules: dict[str, str | None] = {}
    for name, text in texts.items():
        if text is not None:
            if text.lower() == "none":
                rules[name] = None
            else:
                rules[name] = text
    return rules


def read_pairs(texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Return base and target by the name of an axis, from texts such as context=1024:4096."""
    pairs: dict[str, tuple[float, float]] = {}
    for text in texts:
        name, _, sizes = text.partition("=")
        words = sizes.split(":")
        if not name or name in pairs or len(words) != 2:
            raise InputError(
                "axis: expected a name with the sizes of base and target, every name once, such as"
                f" context=1024:4096; got {text!r}",
                argument="axis",
            )
        pairs[name] = (_number(words[0], "axis"), _number(words[1], "axis"))
    return pairs


def read_values(text: str, name: str) -> "LogGrid | list[float]":
    """Return values to try: 1e-4:1e-1:16 is a geometric grid; 1e-3,3e-3 is a list."""
    from orderone.sweeping.space import log_grid

    words = text.split(":" if ":" in text else ",")
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers or (":" in text and (len(numbers) != 3 or not numbers[2].is_integer())):
        raise InputError(
            f"{name}: expected 1e-4:1e-1:16 (first, last, number of values) or 1e-3,3e-3; got"
            f" {text!r}",
            argument=name,
        )
    if ":" in text:
        return log_grid(numbers[0], numbers[1], int(numbers[2]))
    return numbers


def read_axes(texts: tuple[str, ...]) -> "dict[str, LogGrid | list[float] | list[str | float]]":
    """Return values to try by name, from texts such as lr.embedding=1e-3:1e-1:5."""
    axes: dict[str, LogGrid | list[float] | list[str | float]] = {}
    for text in texts:
        name, equals, values = text.rpartition("=")
        if not equals or not name or name in axes:
            raise InputError(
                "space: expected names with values, every name once, such as"
                f" lr.embedding=1e-3:1e-1:5; got {text!r}",
                argument="space",
            )
        if name.partition(".")[0] == "init":
            axes[name] = [start_value(word) for word in values.split(",")]
            continue
        axes[name] = read_values(values, name)
    return axes
