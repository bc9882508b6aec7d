"""Settings of one training, validated."""

from orderone.core.exact import count
from orderone.core.inputs import Count

PRECISIONS = ("float32", "bfloat16", "float64")


def optional_count(value: Count | None, name: str) -> int | None:
    """Return `value` as a whole number, 1 or more; None stays None."""
    if value is None:
        return None
    return count(value, name)
