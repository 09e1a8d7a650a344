"""What is answered as what: JSON, Parquet or Arrow, under the digest of what was read."""

import hashlib
import importlib.metadata
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pandas as pd
from fastapi import Request
from fastapi.responses import Response

from theodolite.api.problems import Problem
from theodolite.store.cache import Kept
from theodolite.store.tables import encode_table

JSON = "application/json"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"

HAS_ARROW = any(importlib.metadata.distributions(name="pyarrow"))

_IMPORTING = threading.Lock()

_KEPT_BYTES = 64 * 2**10
"""Of an answer that is kept: longer ones would leave no room for what they are made from."""

_ENTRY_BYTES = 1024
"""What keeping an answer takes beside it, amply."""

_HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}


def answer(
    request: Request,
    digest: str,
    content: Callable[[], Any],
    frame: Callable[[], pd.DataFrame] | None = None,
    stored: Callable[[], bytes] | None = None,
    *,
    keep: bool = True,
) -> Response:
    """Return 304 where the client has this digest, or else the content in a form that it accepts.

    Who has the digest is not told whether what else it asks makes sense.

    Args:
        request: whose `Accept` and `If-None-Match` count.
        digest: of what is read; it becomes the ETag.
        content: makes what JSON holds.
        frame: makes what Parquet and Arrow hold; None where only JSON is offered.
        stored: reads the same as Parquet, where it is stored so.
        keep: whether the same question is answered from memory next time.

    Raises:
        Problem: 406, no form that the client accepts is offered.
    """
    form = choose_form(request, [JSON, *((PARQUET,) if frame else ()), *((ARROW,) if frame and HAS_ARROW else ())])
    headers = {"ETag": f'"{digest}"', **_HEADERS}
    if _has(request, digest):
        return Response(status_code=304, headers=headers)

    def body() -> bytes:
        if form == JSON:
            return to_json(content())
        assert frame is not None
        return _ENCODERS[form](frame())

    if form == PARQUET and stored is not None:
        packed = stored()  # who reads it keeps it
    else:
        packed = _kept(request, digest, form, body) if keep else body()
    if form != JSON:  # Parquet is packed already, and Arrow is for fast connections: both go as they are
        headers["Content-Encoding"] = "identity"
    return Response(packed, headers=headers, media_type=form)


def _kept(request: Request, digest: str, form: str, body: Callable[[], bytes]) -> bytes:
    """Return a body that was made before: what is asked, of what, and in which form say all that it depends on."""
    kept: Kept = request.app.state.kept
    asked = request.scope["path"].encode(), request.scope["query_string"], digest.encode(), form.encode()
    # A question may be long, so its hash stands for it; the entry itself takes memory too.
    key = hashlib.sha256(b"\0".join(asked)).digest()
    return kept.get(
        key, body, lambda made: len(made) + _ENTRY_BYTES if len(made) <= _KEPT_BYTES else kept.limit_bytes + 1
    )


def to_json(content: Any) -> bytes:
    """Return JSON, in which NaN and infinities are null."""
    return orjson.dumps(content, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def choose_form(request: Request, offered: list[str]) -> str:
    """Return the media type that the client wants most of those that are offered; raises Problem 406 for none."""
    wanted = [_quality(part) for part in request.headers.get("accept", "*/*").split(",") if part.strip()]
    excluded = [media for media, quality in wanted if quality == 0]
    for media, quality in sorted(wanted or [("*/*", 1.0)], key=lambda one: -one[1]):
        for form in offered:
            if quality > 0 and form not in excluded and media in (form, f"{form.partition('/')[0]}/*", "*/*"):
                return form
    raise Problem(406, "not-acceptable", f"Accept: none of what is asked for is offered here: {', '.join(offered)}")


def _quality(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return media.lower(), float(parameter[2:])
            except ValueError:
                return media.lower(), 0.0
    return media.lower(), 1.0


def _has(request: Request, digest: str) -> bool:
    """Return whether the client names this digest; `W/` says that its copy was packed on the way."""
    given = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return f'"{digest}"' in given or "*" in given


def _plain(value: Any) -> Any:
    """Return what orjson does not know in plain types."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _to_arrow(frame: pd.DataFrame) -> bytes:
    with _IMPORTING:
        if sys.modules.get("pyarrow", sys) is None:  # kept out of pandas, see serving.py
            del sys.modules["pyarrow"]
        import pyarrow as pa

    # Not Table.from_pandas, which asks pandas about what it may not have loaded.
    table, sink = pa.table({name: frame[name].to_numpy() for name in frame}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


_ENCODERS: dict[str, Callable[[pd.DataFrame], bytes]] = {PARQUET: encode_table, ARROW: _to_arrow}
