"""Groups of parameters, each with a kernel of its own."""

from collections.abc import Iterable, Mapping, Sequence, Set
from fnmatch import fnmatch
from typing import Annotated, TypeAlias

from torch import nn

from orderone.core.errors import InputError
from orderone.core.inputs import UserInput
from orderone.observe.inventory import clean

SomeGroups: TypeAlias = Annotated[
    Mapping[str, str | Sequence[str]] | Sequence[str] | str, UserInput
]
Groups: TypeAlias = SomeGroups | None
EACH = "each"


def read_groups(groups: object, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of each group, by their full names.

    A mapping has patterns by name of the group; a sequence has one pattern per group; "each" makes
    a group of every parameter.
    """
    names = list(names)
    short = {name: clean(name) for name in names}
    if isinstance(groups, str) and groups == EACH:
        return {short[name]: [name] for name in names}
    if isinstance(groups, str):
        groups = (groups,)
    if isinstance(groups, Mapping):
        table = {str(group): patterns for group, patterns in groups.items()}
    elif isinstance(groups, (Sequence, Set)):
        table = {str(pattern): pattern for pattern in groups}
    else:
        table = {}
    if not table:
        raise InputError(
            'groups: expected "each", patterns of parameter names such as ["*.bias"], or a dict of'
            f" them by name of the group; got {groups!r}",
            argument="groups",
        )
    return {group: _members(group, patterns, short) for group, patterns in table.items()}


def _members(group: str, patterns: object, short: Mapping[str, str]) -> list[str]:
    """Return the parameters that match the patterns of a group; `short` has clean names."""
    if not isinstance(patterns, (Sequence, Set)):
        raise InputError(
            f"groups: expected a pattern of parameter names or several, got {patterns!r} for"
            f" {group}",
            "wrong-type",
            argument="groups",
        )
    members: list[str] = []
    for pattern in (patterns,) if isinstance(patterns, str) else tuple(patterns):
        matching = [name for name in short if fnmatch(short[name], str(pattern))]
        if not matching:
            trained = list(short.values())
            raise InputError(
                f"groups: no trained parameter matches {pattern!r}; the model has"
                f" {trained[0]}, ..., {trained[-1]}",
                "unknown-name",
                argument="groups",
            )
        members.extend(matching)
    return list(dict.fromkeys(members))


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, each once."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputError(
            f"model: expected a module with trained parameters, got {type(model).__name__}, which"
            " has none that requires a gradient",
            argument="model",
        )
    return parameters
