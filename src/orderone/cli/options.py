"""Parsing of a verb's options with tyro, from the signature and the docstring of its function."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import tyro

from orderone.cli.help import (
    declared_name,
    is_positional,
    metavar,
    no_color,
    option_name,
    read_docstring,
)
from orderone.core.errors import InputError

# Options of other verbs and programs, and what they are called here: the first that a verb has.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "config": ("hf-config",),
    "dataset": ("data",),
    "learning-rate": ("lr",),
    "learning-rates": ("lr",),
    "model": ("builder",),
    "optim": ("optimizer",),
    "rule": ("rules",),
    "rules": ("rule",),
    "size": ("widths",),
    "sizes": ("widths", "size"),
    "wd": ("weight-decay",),
    "width": ("widths", "size"),
    "widths": ("size",),
}


def parse(name: str, verb: Callable[..., None], words: Sequence[str]) -> None:
    """Read the options of a verb and call it; wrong options end the program with status 2."""
    refuse_positional(name, verb, words)
    refuse_other_names(name, verb, words)
    if no_color():
        tyro._experimental_options["ansi_codes"] = False  # tyro itself ignores NO_COLOR
    tyro.cli(
        readable(verb), prog=f"orderone {name}", args=words, config=(tyro.conf.FlagCreatePairsOff,)
    )


def refuse_positional(name: str, verb: Callable[..., None], words: Sequence[str]) -> None:
    """Raise an InputError for `orderone check mine:build`: the model is an option."""
    parameters = signature(verb).parameters
    if "builder" not in parameters or any(map(is_positional, parameters.values())):
        return
    flags = {option_name(p) for p in parameters.values() if isinstance(p.default, bool)}
    after_option = False  # the word before is an option, which may take this one
    for word in words:
        if word.startswith("-"):
            after_option = "=" not in word and word not in flags
        elif after_option:
            several = parameters.get(words[words.index(word) - 1].lstrip("-").replace("-", "_"))
            after_option = several is not None and "tuple" in str(several.annotation)
        elif ":" in word or word.endswith(".py"):
            raise InputError(
                f"{word!r} is not preceded by an option; write orderone {name} --builder"
                f" {word if ':' in word else 'package.module:function'}",
                "option-expected",
                argument="builder",
            )


def refuse_other_names(name: str, verb: Callable[..., None], words: Sequence[str]) -> None:
    """Raise an InputError for an option that this verb has under another name.

    Misspelt options are left to tyro, which suggests others.
    """
    known: list[str] = []
    for parameter in signature(verb).parameters.values():
        known.append(option_name(parameter).removeprefix("--"))
    for word in words:
        option = word.partition("=")[0].removeprefix("--").replace("_", "-")
        if not word.startswith("--") or option in known:
            continue
        names = [other for other in OTHER_NAMES.get(option, ()) if other in known]
        if names:
            raise InputError(
                f"orderone {name} has no option --{option}; did you mean --{names[0]}?",
                "unknown-name",
                argument=names[0].replace("-", "_"),
            )


def readable(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the same verb for tyro, whose messages then show no `{None}|STR`.

    The text of an option says what None means.
    """
    original = signature(verb)
    hints = get_type_hints(verb, include_extras=True)
    parameters = []
    for name, parameter in original.parameters.items():
        parameters.append(parameter.replace(annotation=_annotation(parameter, hints[name])))

    @wraps(verb)
    def wrapper(*arguments: object, **options: object) -> None:
        verb(*arguments, **options)

    del wrapper.__wrapped__  # tyro would read the signature of the verb itself
    vars(wrapper)["__signature__"] = original.replace(parameters=parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    wrapper.__doc__ = _docstring(verb)
    return wrapper


def _docstring(verb: Callable[..., None]) -> str:
    """Return the docstring with one line for each option: tyro would keep our line breaks."""
    description, texts = read_docstring(verb)
    lines = [*description, "", "Args:"]
    for name, text in texts.items():
        lines.append(f"    {name}: {text}")
    return "\n".join(lines)


def _annotation(parameter: Parameter, hint: Any) -> Any:
    if parameter.default is None:
        word = metavar(hint)
        if is_positional(parameter):
            word = f"[{word}]"
        return Annotated[hint, tyro.conf.arg(metavar=word, help_behavior_hint="")]
    if isinstance(parameter.default, bool):
        return Annotated[hint, tyro.conf.arg(name=declared_name(hint), help_behavior_hint="")]
    return hint
