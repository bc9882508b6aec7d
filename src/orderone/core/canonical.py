"""Canonical JSON and its SHA-256 digest: equal values give equal text."""

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """JSON that is the same for the same value; a ValueError for NaN and infinity, which JSON has
    not."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
