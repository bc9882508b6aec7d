"""`orderone explain`: what a code at the end of a message means, and what to do."""

from difflib import get_close_matches
from typing import Annotated

import tyro

from orderone.cli import show
from orderone.cli.help import Help, entry, heading, wrapped
from orderone.core.codes import EXPLANATIONS, SECTIONS
from orderone.core.errors import InputError

HELP = Help(
    example="orderone explain unknown-name",
    groups={"Output": ("json",)},
)
CODE = tyro.conf.arg(metavar="[CODE]", help_behavior_hint="")


def explain(
    code: Annotated[str | None, tyro.conf.Positional, CODE] = None, /, json: bool = False
) -> None:
    """Explain a code: what happened, why, and what to do.

    Error messages and notes end with a code in square brackets, such as [unknown-name]. Codes stay
    the same when sentences are reworded. Without a code, list all of them.

    Args:
        code: The code, with or without its brackets.
        json: Print JSON instead of text.
    """
    if code is None:
        _list_all(json)
        return
    name = _known(code)
    if json:
        show.print_json({"code": name, "section": _section_of(name), "text": EXPLANATIONS[name]})
        return
    print("\n".join([heading(name), *wrapped(EXPLANATIONS[name])]))


def _known(code: str) -> str:
    name = code.strip("[] ").lower()
    if name in EXPLANATIONS:
        return name
    message = f"unknown code {code!r}; run `orderone explain` for a list of all codes"
    near = get_close_matches(name, EXPLANATIONS, n=2)
    if near:
        message += f"; did you mean {' or '.join(near)}?"
    raise InputError(message, "unknown-name", argument="code")


def _list_all(json: bool) -> None:
    if json:
        show.print_json(SECTIONS)
        return
    lines: list[str] = []
    for title, codes in SECTIONS.items():
        if codes:
            lines += ["", heading(title)]
        for code, text in codes.items():
            first_sentence = text.partition(". ")[0].removesuffix(".")
            lines += entry(code, f"{first_sentence}.")
    print("\n".join(lines[1:]))


def _section_of(code: str) -> str:
    return next(title for title, codes in SECTIONS.items() if code in codes)
