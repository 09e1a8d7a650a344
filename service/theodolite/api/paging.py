"""Pages of long answers: a cursor is where the next one begins, and nobody's business."""

import base64
import binascii
from typing import Annotated

from fastapi import Query

from theodolite.api.problems import Problem

Limit = Annotated[int, Query(ge=1, le=1000, description="Items of a page.")]
Cursor = Annotated[str | None, Query(max_length=64, description="`next` of the page before.")]


def start_of(cursor: str | None) -> int:
    """Return where a page begins; raises Problem 422 for what is no cursor of ours."""
    if cursor is None:
        return 0
    try:
        start = int(base64.b32decode(cursor.encode(), casefold=True))
    except (ValueError, binascii.Error):
        start = -1
    if not 0 <= start < 2**53:
        raise Problem(422, "cursor", f"cursor: given {cursor!r}; take it from `next` of the page before")
    return start


def next_cursor(start: int, total: int) -> str | None:
    """Return the cursor of the page that begins at `start`, or None where there is none."""
    return base64.b32encode(str(start).encode()).decode() if start < total else None
