r"""Patterns that match a set of tensor names, and no other name of the model.

    layers.0.mlp.up.weight, layers.1.mlp.up.weight  ->  ^layers\.\d+\.mlp\.up\.weight$
                                                        layers.*.mlp.up.weight

Names that differ only in numbers become one pattern if the set holds all such names of the model.
Otherwise the names are listed one by one. Every pattern is compared with all names of the model, so
that it cannot match too much.

Some trainers match names with the parts that wrappers add to them: data parallelism and compilation
in front of all names, checkpointing after the number of a layer. `regex(wrapped=True)`,
`globs(prefix=...)` and `globs(anywhere=True)` match these, too.
"""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

# between dots, or at the end: layers.0.weight, experts.linear.weight0
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=weight)\d+$")
# what data parallelism and compilation add in front of a name: _orig_mod.module.layers.0.weight
OUTER_PART = r"(?:module|_\w+)\."
OUTER = f"(?:{OUTER_PART})*"
# what checkpointing and compilation add after the number of a layer: layers.0._orig_mod.weight
INNER = r"(?:\._\w+)*"
Template: TypeAlias = tuple[str, ...]


def template(name: str) -> Template:
    """Return the parts of a name between the numbers of layers and experts."""
    return tuple(NUMBER.split(name))


def regex(names: Collection[str], model_names: Collection[str], wrapped: bool = False) -> str:
    """Return a regular expression for `names`, to be used with re.search.

    With `wrapped`, parts that wrappers add may stand in front, and after the number of a layer.
    """
    if wrapped:
        for outer, inner in ((OUTER, INNER), ("", INNER), (OUTER, "")):
            pattern = _regex(names, model_names, outer, inner)
            if all(name in names for name in model_names if re.search(pattern, name)):
                return pattern
    return _regex(names, model_names, "", "")


def inside(name: str) -> list[str]:
    """Return a name, and what remains of it without one, two, ... of the parts in front."""
    names = [name]
    while re.match(OUTER_PART, name):
        name = name.partition(".")[2]
        names.append(name)
    return names


def _regex(names: Collection[str], model_names: Collection[str], outer: str, inner: str) -> str:
    parts: list[str] = []
    for alike in _alike(names):
        if _complete(alike, model_names):
            parts.append(_with_numbers(alike[0], r"\d+", inner))
        else:
            parts += [_with_numbers(name, None, inner) for name in alike]
    end = "$"
    if any(name.endswith("\n") for name in model_names):
        end = r"\Z"  # `$` also matches before a newline
    if len(parts) == 1:
        return f"^{outer}{parts[0]}{end}"
    return f"^{outer}(?:{'|'.join(parts)}){end}"


def _with_numbers(name: str, number: str | None, wrappers: str) -> str:
    """Return a regular expression for a name: `number` in place of its numbers, or themselves."""
    first, *others = template(name)
    pattern = re.escape(first)
    for digits, text in zip(NUMBER.findall(name), others, strict=True):
        pattern += digits if number is None else number
        if text.startswith("."):
            pattern += wrappers
        pattern += re.escape(text)
    return pattern


def globs(
    names: Collection[str],
    model_names: Collection[str],
    prefix: str = "",
    anywhere: bool = False,
) -> list[str]:
    """Return shell patterns (fnmatch) for `names`; `*` also matches dots in them.

    No name matches two of them: a trainer would update its tensor twice. `prefix` is what wrappers
    may add before a name, any number of times: it makes further patterns. Some trainers refuse
    patterns that match nothing; for these, with `anywhere`, patterns begin with a star instead.
    """
    patterns: list[str] = []
    for alike in _alike(names):
        pattern = "*".join(map(_literal, template(alike[0])))
        if _matches_only(pattern, alike, model_names):
            patterns.append(pattern)
        else:
            patterns += map(_literal, alike)
    if anywhere:
        patterns = [_anywhere(pattern, model_names) for pattern in patterns]
    if prefix:
        wrapped = [f"*{_literal(prefix)}{pattern}" for pattern in patterns]
        patterns += [p for p in wrapped if _matches_only(p, names, model_names)]
    return patterns


def numbers_matter(names: Collection[str], model_names: Collection[str]) -> bool:
    """Return whether a pattern for `names` lists some layers or experts and leaves others out."""
    return any(not _complete(alike, model_names) for alike in _alike(names))


def _anywhere(pattern: str, model_names: Collection[str]) -> str:
    """Return a shell pattern with a star in front, unless it would match further names."""
    starred = f"*{pattern}"
    for name in model_names:
        if fnmatchcase(name, starred) != fnmatchcase(name, pattern):
            return pattern
    return starred


def _matches_only(pattern: str, wanted: Collection[str], model_names: Collection[str]) -> bool:
    return all(name in wanted for name in model_names if fnmatchcase(name, pattern))


def _alike(names: Collection[str]) -> list[Sequence[str]]:
    """Return the names in lists of equal templates."""
    by_template: dict[Template, list[str]] = {}
    for name in names:
        by_template.setdefault(template(name), []).append(name)
    return list(by_template.values())


def _complete(alike: Sequence[str], model_names: Collection[str]) -> bool:
    """Return whether these are all names of the model with their template."""
    shared = template(alike[0])
    return all(name in alike for name in model_names if template(name) == shared)


def _literal(name: str) -> str:
    """Return a shell pattern that matches only this name."""
    return re.sub(r"([*?[])", r"[\1]", name)
