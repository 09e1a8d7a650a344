"""Pages of long answers: a cursor is opaque to clients and encodes the start of the next page."""

import base64
import binascii
from typing import Annotated

from fastapi import Query

from theodolite.api.problems import Problem

_TAG = 8
"""Characters of a digest in a cursor."""

Limit = Annotated[int, Query(ge=1, le=1000, description="Items of a page.")]
Cursor = Annotated[str | None, Query(max_length=64, description="`next` of the previous page.")]


def start_of(cursor: str | None, digest: str = "") -> int:
    """Return the index of the first item of a page.

    Args:
        cursor: `next` of the previous page; None is the first page.
        digest: digest of the results that are paged, which must not have changed; empty for lists that grow.

    Raises:
        Problem: 422 for a malformed cursor, 409 if the results were computed again.
    """
    if cursor is None:
        return 0
    try:
        text = base64.b32decode(cursor.encode(), casefold=True).decode()
        start = int(text.partition(".")[0])
    except (ValueError, binascii.Error):
        start, text = -1, ""
    if not 0 <= start < 2**53:
        raise Problem(422, "cursor", f"cursor: given {cursor!r}; take it from `next` of the page before")
    if text.partition(".")[2] != digest[:_TAG]:
        raise Problem(409, "changed", "cursor: what it pages through was computed again; begin again without a cursor")
    return start


def next_cursor(start: int, total: int, digest: str = "") -> str | None:
    """Return the cursor of the page that begins at `start`, or None after the last page; `digest` as in `start_of`."""
    return base64.b32encode(f"{start}.{digest[:_TAG]}".encode()).decode() if start < total else None
