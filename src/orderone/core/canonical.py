"""Canonical JSON and its SHA-256 digest: equal values give equal text."""

import hashlib
import json


def canonical(value: object) -> str:
    """Return `value` as JSON that is the same for equal values.

    Raise a ValueError for NaN and infinity, which JSON cannot hold.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: object) -> str:
    """Return the SHA-256 digest of the canonical JSON of `value`, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()
