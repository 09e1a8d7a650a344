"""Checksums of stored objects, and JSON records that carry their own."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from theodolite.digests import canonical_json

_OWN = "sha256"
"""The field of a sealed record that holds the SHA-256 of the other fields."""


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def damage_of(content: bytes | None, checksum: str, done: str = "written") -> str | None:
    """Return the problem of an object that was written or committed, or None if its checksum is right."""
    if content is None:
        return "is missing"
    return None if sha256(content) == checksum else f"its bytes are not those that were {done}"


def seal(fields: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Return a JSON record of these fields with a checksum of its own; `unseal` checks it.

    The names of all fields, at every level, must be strings. With an `indent`, the record has one field per line.
    """
    own = sha256(canonical_json(fields).encode())
    return json.dumps({**fields, _OWN: own}, indent=indent, ensure_ascii=False).encode()


def unseal(content: bytes | None) -> dict[str, Any]:
    """Return the fields of a sealed JSON record, None if it is missing, without its checksum.

    Raises:
        ValueError: the record is missing, is not a JSON object, or differs from its checksum; the message completes a
            sentence that begins with the record's key.
    """
    fields = json_object(content)
    own = fields.pop(_OWN, None)
    if own is None:
        raise ValueError("has no checksum of its own")
    if own != sha256(canonical_json(fields).encode()):
        raise ValueError("differs from its own checksum")
    return fields


def json_object(content: bytes | None) -> dict[str, Any]:
    """Return the fields of a JSON object; raise ValueError, as `unseal` does, if it is missing or something else."""
    if content is None:
        raise ValueError("is missing")
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    return fields
