"""Split long responses into pages: a cursor, opaque to clients, encodes the start of the next page."""

import base64
import binascii
from typing import Annotated

from fastapi import Query

from theodolite.api.problems import Problem

_TAG = 8
"""Characters of a digest in a cursor."""

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
Cursor = Annotated[str | None, Query(max_length=64, description="`next` of the previous page; none for the first.")]


def start_of(cursor: str | None, digest: str = "") -> int:
    """Return the index of the first item of a page.

    Args:
        cursor: `next` of the previous page; None is the first page.
        digest: digest of the paged results, which must be that of the previous page; empty for lists that grow.

    Raises:
        Problem: 422 for a malformed cursor, 409 if the results were computed again since the previous page, or if the
            cursor is that of another selection.
    """
    if cursor is None:
        return 0
    try:
        text = base64.b32decode(cursor.encode(), casefold=True).decode()
        start = int(text.partition(".")[0])
    except (ValueError, binascii.Error):
        start, text = -1, ""
    if not 0 <= start < 2**53:
        raise Problem(422, "cursor", f"cursor: given {cursor!r}; allowed: `next` of the previous page")
    if text.partition(".")[2] != digest[:_TAG]:
        raise Problem(
            409,
            "changed",
            "cursor: the results or the selection changed since the previous page; start again without it",
        )
    return start


def next_cursor(start: int, total: int, digest: str = "") -> str | None:
    """Return the cursor of the page from `start` on, or None after the last page; `digest` as in `start_of`."""
    return base64.b32encode(f"{start}.{digest[:_TAG]}".encode()).decode() if start < total else None
