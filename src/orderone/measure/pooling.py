"""Models of different depth, layer by layer: `layers.7.mlp` is called `layers.*.mlp` in all of
them.

Only numbers that count layers are pooled. Those of a sequence that is as long in the deep model as
in the shallow one (`layers.7.mlp.2`) name different things.
"""

from collections.abc import Callable

from torch import nn

from orderone.planning.counterparts import stack_of


def pooled(small: nn.Module, large: nn.Module) -> Callable[[str], str]:
    """The name that a module or tensor shares with its like in other layers."""
    shallow = _lengths(small)
    deep = _lengths(large)
    stacks = {parent for parent, length in deep.items() if length != shallow.get(parent)}

    def key(name: str) -> str:
        parts = name.split(".")
        counts = (
            part.isdigit() and stack_of(".".join(parts[:at])) in stacks
            for at, part in enumerate(parts)
        )
        return ".".join(
            "*" if counted else part for part, counted in zip(parts, counts, strict=True)
        )

    return key


def _lengths(model: nn.Module) -> dict[str, int]:
    """Of every sequence, by the name that its likes share: how far its numbers go."""
    found: dict[str, int] = {}
    for name in (*dict(model.named_modules()), *dict(model.named_parameters())):
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdigit():
                parent = stack_of(".".join(parts[:at]))
                found[parent] = max(found.get(parent, 0), int(part) + 1)
    return found
