"""Digests of values that can be written as JSON."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and without spaces; equal values have the same text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
