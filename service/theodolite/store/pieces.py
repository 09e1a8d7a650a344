"""Objects that name what they are: a piece of work that another process stores, and that a later step trusts.

The first line of such a piece is JSON: what the piece is, and the checksum of the bytes behind it. A reader compares
the whole line with the one that it expects. So a damaged piece is noticed, and so is one that was copied or moved from
another run, contrast or range. A record without bytes behind it is a sealed JSON object that names its key.
"""

import json
from collections.abc import Mapping
from typing import Any

from theodolite.store.checksums import seal, sha256, unseal


def named(identity: Mapping[str, Any], content: bytes) -> bytes:
    """Return the content behind the line that names it."""
    return json.dumps({**identity, "sha256": sha256(content)}, sort_keys=True).encode() + b"\n" + content


def content_of(identity: Mapping[str, Any], stored: bytes | None) -> bytes | None:
    """Return the content of a piece; None if it is missing or damaged, or if it is another piece."""
    _, _, content = (stored or b"").partition(b"\n")
    return content if stored == named(identity, content) else None


def record(key: str, fields: Mapping[str, Any]) -> bytes:
    """Return the content of a record that is stored at a key; `fields_of` reads it."""
    return seal({"key": key, **fields})


def fields_of(key: str, stored: bytes | None) -> dict[str, Any] | None:
    """Return the fields of the record at a key; None if it is missing or damaged, or a copy of another record."""
    try:
        fields = unseal(stored)
    except ValueError:
        return None
    return fields if fields.pop("key", None) == key else None
