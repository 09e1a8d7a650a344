"""Objects that name what they are: a piece of work that another process stores, and that a later step trusts.

The first line of such an object is JSON: what the piece is, and the checksum of the bytes behind it. A reader compares
the whole line with the one that it expects. So a damaged piece is noticed, and so is one that was copied or moved from
another run, contrast or range.
"""

import json
from collections.abc import Mapping
from typing import Any

from theodolite.store.checksums import sha256


def named(identity: Mapping[str, Any], content: bytes) -> bytes:
    """Return the content behind the line that names it."""
    return _line(identity, content) + content


def content_of(identity: Mapping[str, Any], stored: bytes | None) -> bytes | None:
    """Return the content of a piece; None if it is missing or damaged, or if it is another piece."""
    _, _, content = (stored or b"").partition(b"\n")
    return content if stored == named(identity, content) else None


def _line(identity: Mapping[str, Any], content: bytes) -> bytes:
    return json.dumps({**identity, "sha256": sha256(content)}, sort_keys=True).encode() + b"\n"
