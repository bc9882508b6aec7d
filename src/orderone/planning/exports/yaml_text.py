"""YAML text of plain data: mappings, lists, strings, numbers, booleans, None."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def yaml_text(data: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, which YAML 1.1 and 1.2 read alike."""
    return "\n".join(_lines(data, 0)) + "\n"


def _lines(value: object, indent: int) -> list[str]:
    space = " " * indent
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _is_nested(item):
                lines.append(f"{space}{key}:")
                lines += _lines(item, indent + 2)
            else:
                lines.append(f"{space}{key}: {_scalar(item)}")
        return lines
    if not isinstance(value, Sequence):
        return [space + _scalar(value)]
    for item in value:
        if _is_nested(item):
            nested = _lines(item, indent + 2)
        else:
            nested = [f"{space}  {_scalar(item)}"]
        lines.append(f"{space}- {nested[0].lstrip()}")
        lines += nested[1:]
    return lines


def _is_nested(value: object) -> bool:
    if isinstance(value, str):
        return False
    return isinstance(value, Mapping | Sequence) and len(value) > 0


def _scalar(value: object) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
        number = repr(value)
        # YAML 1.1 reads 1e-05 as a string
        if "e" in number and "." not in number:
            return number.replace("e", ".0e", 1)
        return number
    return json.dumps(value)
