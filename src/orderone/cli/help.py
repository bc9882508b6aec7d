"""Pages for `--help`: usage, an example, options grouped by purpose, at the terminal's width.

tyro parses the command line, but its help page has no groups, so that the page is written here. It
needs no import of tyro, which takes longer than everything else that `orderone --help` does.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, getdoc, signature
from shutil import get_terminal_size
from textwrap import wrap
from types import NoneType
from typing import Any, get_args, get_origin

WIDEST = 100  # longer lines are hard to read
INDENT = 2
OPTION_COLUMN = 22  # descriptions start here; longer options have a line of their own
NARROW = 60  # below this width, descriptions start on the next line
OTHER = "Other options"
METAVARS: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR"}


@dataclass(frozen=True)
class Help:
    """Parts of a help page that the verb's docstring does not contain."""

    example: str
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # title -> parameters


def terminal_width() -> int:
    """Return the width of the terminal; 80 for a pipe; COLUMNS overrides both."""
    return min(get_terminal_size().columns, WIDEST)


def verb_page(name: str, verb: Callable[..., None], help: Help) -> str:
    """Return the help page of a verb."""
    description, texts = read_docstring(verb)
    parameters = dict(signature(verb).parameters)
    usage = f"orderone {name}"
    arguments = []
    for parameter in parameters.values():
        if is_positional(parameter):
            usage += f" {_invocation(parameter)}"
            arguments.append(parameter)
    if len(arguments) < len(parameters):
        usage += " [OPTIONS]"
    lines = [*_usage(usage), ""]
    for paragraph in description:
        lines += [*wrapped(paragraph), ""]
    lines += [heading("Example:"), *command(help.example)]
    groups = {"Arguments": tuple(parameter.name for parameter in arguments), **help.groups}
    grouped = {parameter for group in groups.values() for parameter in group}
    groups[OTHER] = tuple(parameter for parameter in parameters if parameter not in grouped)
    for title, members in groups.items():
        if not members:
            continue
        lines += ["", heading(f"{title}:")]
        for member in members:
            text = _with_default(texts[member], parameters[member])
            lines += entry(_invocation(parameters[member]), text)
    return "\n".join(lines)


def _usage(command: str) -> list[str]:
    if len(f"Usage: {command}") > terminal_width():
        return [heading("Usage:"), *wrapped(command, INDENT)]
    return [f"{heading('Usage:')} {command}"]


def read_docstring(verb: Callable[..., None]) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs of the description, and the text of each argument."""
    description, _, arguments = (getdoc(verb) or "").partition("\nArgs:\n")
    paragraphs = [" ".join(part.split()) for part in description.split("\n\n")]
    texts: dict[str, str] = {}
    for match in re.finditer(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", arguments, flags=re.M):
        texts[match[1]] = " ".join(match[2].split())
    return [paragraph for paragraph in paragraphs if paragraph], texts


def is_positional(parameter: Parameter) -> bool:
    """Return whether the parameter is an argument without `--`."""
    return parameter.kind is Parameter.POSITIONAL_ONLY


def option_name(parameter: Parameter) -> str:
    """Return the option of a parameter; that of a flag which is on by default turns it off."""
    name = (declared_name(parameter.annotation) or parameter.name).replace("_", "-")
    if parameter.default is True:
        return f"--no-{name}"
    return f"--{name}"


def declared_name(hint: Any) -> str | None:
    """Return the name that `tyro.conf.arg(name=...)` gives to an option; None if there is none."""
    for mark in getattr(hint, "__metadata__", ()):
        if getattr(mark, "name", None) and hasattr(mark, "metavar"):
            return mark.name
    return None


def metavar(hint: Any) -> str:
    """Return INT, FLOAT or STR for the type of a parameter."""
    if hasattr(hint, "__metadata__"):
        hint = get_args(hint)[0]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind not in (NoneType, ...)]
    if get_origin(kinds[0]) is tuple:  # as many values as the tuple has
        return " ".join(METAVARS[kind] for kind in get_args(kinds[0]))
    return METAVARS[kinds[0]]


def _invocation(parameter: Parameter) -> str:
    hint = parameter.annotation
    several = parameter.default == () or "tuple" in str(hint)
    if is_positional(parameter):
        name = parameter.name.upper()
        if several:
            return f"[{name} ...]"
        return f"[{name}]"
    option = option_name(parameter)
    if isinstance(parameter.default, bool):
        return option
    if several and parameter.default is Parameter.empty:
        return f"{option} {metavar(hint)} [{metavar(hint)} ...]"
    return f"{option} {metavar(hint)}"


def _with_default(text: str, parameter: Parameter) -> str:
    default = parameter.default
    if default is Parameter.empty:
        return f"{text} Required."
    if default is None or isinstance(default, bool) or default in ("", ()):
        return text  # the text says what happens without the option
    return f"{text} Default: {default}."


# --- layout ---------------------------------------------------------------------------------------


def no_color() -> bool:
    """Return whether the user asked for plain text (https://no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def heading(text: str) -> str:
    """Return the text in bold on a terminal that shows it; NO_COLOR turns that off."""
    plain = no_color() or os.environ.get("TERM") == "dumb"
    if plain or not sys.stdout.isatty():
        return text
    return f"\033[1m{text}\033[0m"


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Return lines that fit the terminal."""
    blanks = " " * indent
    return wrap(
        text,
        max(terminal_width(), indent + 20),
        initial_indent=blanks,
        subsequent_indent=blanks,
        break_long_words=False,
        break_on_hyphens=False,
    )


def command(text: str) -> list[str]:
    """Return a command, continued with backslashes where it does not fit the terminal."""
    lines = [" " * INDENT]
    room = max(terminal_width(), NARROW // 2) - len(" \\")
    for word in re.findall(r"--\S+ [^-\s]\S*|\S+", text):  # an option stays with its value
        if lines[-1].strip() and len(lines[-1]) + len(word) > room:
            lines[-1] += "\\"
            lines.append(" " * 3 * INDENT)
        lines[-1] += f"{word} "
    return [line.rstrip() for line in lines]


def entry(name: str, text: str, column: int = OPTION_COLUMN) -> list[str]:
    """Return a name with its text beside it, or below it where there is no room."""
    if terminal_width() < NARROW:
        return [*wrapped(name, INDENT), *wrapped(text, 3 * INDENT)]
    lines = wrapped(text, column)
    if len(name) + INDENT + 2 > column:
        return [f"{'':{INDENT}}{name}", *lines]
    first = f"{'':{INDENT}}{name}".ljust(column) + lines[0].lstrip()
    return [first, *lines[1:]]


def section(title: str, entries: Iterable[tuple[str, str]], column: int) -> list[str]:
    """Return a heading with its entries."""
    lines = ["", heading(f"{title}:")]
    for name, text in entries:
        lines += entry(name, text, column)
    return lines
