"""Split long responses into pages: a cursor, opaque to clients, encodes the start of the next page."""

import base64
import binascii
import hashlib
from typing import Annotated

from fastapi import Query

from theodolite.api.problems import Problem

_TAG = 8
"""Characters of a digest, and of the hash of a selection, in a cursor."""

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items on a page.")]
Cursor = Annotated[str | None, Query(max_length=64, description="`next` of the previous page; none for the first.")]


def start_of(cursor: str | None, digest: str = "", selection: str = "") -> int:
    """Return the index of the first item of a page.

    Args:
        cursor: `next` of the previous page; None is the first page.
        digest: digest of the paged results, which must be that of the previous page; empty for lists that grow.
        selection: text of the conditions and the order, which must be that of the previous page.

    Raises:
        Problem: 422 for a malformed cursor or one of another selection, 409 if the results were computed again
            since the previous page.
    """
    if cursor is None:
        return 0
    try:
        number, of_results, of_selection = base64.b32decode(cursor.encode(), casefold=True).decode().split(".")
        start = int(number)
    except (ValueError, binascii.Error):
        start, of_results, of_selection = -1, "", ""
    if not 0 <= start < 2**53 or of_selection != _hash(selection):
        allowed = "`next` of the previous page, with the same conditions and the same order"
        raise Problem(422, "cursor", f"cursor: given {cursor!r}; allowed: {allowed}")
    if of_results != digest[:_TAG]:
        raise Problem(409, "changed", "cursor: the results changed since the previous page; start again without it")
    return start


def next_cursor(start: int, total: int, digest: str = "", selection: str = "") -> str | None:
    """Return the cursor of the page from `start` on, or None after the last page; other arguments as in `start_of`."""
    text = f"{start}.{digest[:_TAG]}.{_hash(selection)}"
    return base64.b32encode(text.encode()).decode() if start < total else None


def _hash(selection: str) -> str:
    return hashlib.sha256(selection.encode()).hexdigest()[:_TAG] if selection else ""
