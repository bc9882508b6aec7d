"""Sizes and seeds, as people give them."""

from typing import Any

from orderone.core.exact import count


def read_sizes(widths: Any, depths: Any) -> tuple[str, list[int]]:
    """The axis, and at least two sizes along it."""
    if (widths is None) == (depths is None):
        raise ValueError(
            "widths: expected widths=[64, 128, ...] or depths=[2, 4, ...], one of the two"
        )
    axis, given = ("width", widths) if depths is None else ("depth", depths)
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise ValueError(
            f"{axis}s: expected several sizes such as [64, 128, 256, 512], got {given!r}"
        )
    sizes = sorted({count(size, f"{axis}s") for size in given})
    if len(sizes) < 2:
        raise ValueError(
            f"{axis}s: expected at least two different sizes to fit an exponent to, got {sizes}"
        )
    return axis, sizes


def read_seeds(given: Any) -> list[int]:
    """How many, or which."""
    if not hasattr(given, "__iter__"):
        return list(range(count(given, "seeds")))
    found = [count(seed, "seeds", least=0) for seed in given]
    if not found:
        raise ValueError("seeds: expected how many, or which; got none")
    return list(dict.fromkeys(found))
