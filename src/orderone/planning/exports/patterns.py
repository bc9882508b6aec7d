r"""Patterns that match a set of tensor names, and no other name of the model.

    layers.0.mlp.up.weight, layers.1.mlp.up.weight  ->  ^layers\.\d+\.mlp\.up\.weight$
                                                        layers.*.mlp.up.weight

Names that differ only in numbers become one pattern if the set holds all such names of the model.
Otherwise the names are listed one by one. Every pattern is compared with all names of the model, so
that it cannot match too much.
"""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

# between dots, or at the end: layers.0.weight, experts.linear.weight0
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)|(?<=weight)\d+$")


def template(name: str) -> str:
    """Return a name with `{}` in place of the numbers of layers and experts."""
    return NUMBER.sub("{}", name)


def regex(names: Collection[str], model_names: Collection[str]) -> str:
    """Return a regular expression for `names`, to be used with re.search."""
    parts: list[str] = []
    for alike in _alike(names):
        if _complete(alike, model_names):
            parts.append(re.escape(template(alike[0])).replace(r"\{\}", r"\d+"))
        else:
            parts += map(re.escape, alike)
    if len(parts) == 1:
        return f"^{parts[0]}$"
    return f"^(?:{'|'.join(parts)})$"


def globs(names: Collection[str], model_names: Collection[str]) -> list[str]:
    """Return shell patterns (fnmatch) for `names`; `*` also matches dots in them."""
    wanted = set(names)
    patterns: list[str] = []
    for alike in _alike(names):
        pattern = _literal(template(alike[0])).replace("{}", "*")
        if all(name in wanted for name in model_names if fnmatchcase(name, pattern)):
            patterns.append(pattern)
        else:
            patterns += map(_literal, alike)
    return patterns


def _alike(names: Collection[str]) -> list[Sequence[str]]:
    """Return the names in lists of equal templates."""
    by_template: dict[str, list[str]] = {}
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
