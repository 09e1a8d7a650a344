"""Encode responses as JSON, CSV, Parquet or Arrow, with the digest of the results as their ETag."""

import hashlib
import importlib.metadata
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson
import pandas as pd
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from theodolite.api.problems import Problem
from theodolite.store.cache import Cache
from theodolite.store.tables import encode_tables

JSON = "application/json"
CSV = "text/csv"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the first character of a cell that spreadsheets run
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
BINARY = "application/octet-stream"
"""The media type of stored objects, safetensors, npy and gguf: none of them is registered."""

_FORMS = {"json": JSON, "csv": CSV, "parquet": PARQUET, "arrow": ARROW}

HAS_ARROW = any(importlib.metadata.distributions(name="pyarrow"))

_IMPORTING = threading.Lock()

_CACHED_ANSWER_BYTES = 64 * 2**10
"""Maximum size of a cached response: larger ones would evict the results that responses are computed from."""

_CSV_ROWS = 20_000
"""Number of rows of a piece of CSV."""

_BINARY_ROWS = 250_000
"""Number of rows of a piece of Parquet or Arrow."""

_ENTRY_BYTES = 1024
"""An upper bound of the memory that a cache entry takes in addition to the response."""

_HEADERS = {"Cache-Control": "private, no-cache", "Vary": "Accept, Authorization"}


def answer(
    request: Request,
    digest: str,
    content: Callable[[], Any],
    frame: Callable[[], pd.DataFrame] | None = None,
    stored: Callable[[], bytes] | None = None,
    *,
    types: Callable[[], Mapping[str, Any]] | None = None,
    use_cache: bool = True,
) -> Response:
    """Return 304 if the client has this response, and otherwise the content in a media type that the client accepts.

    A matching ETag returns 304 before the remaining parameters are validated.

    Args:
        request: the request, with its headers `Accept` and `If-None-Match`.
        digest: digest of the results behind the response; it becomes the ETag, with the media type if that is not JSON.
        content: returns the content of JSON.
        frame: returns the table of CSV, Parquet and Arrow; None offers only JSON.
        stored: returns the stored Parquet object, if the store has the table.
        types: returns the types of the columns in Parquet and Arrow; None keeps those of the frame.
        use_cache: whether the encoded response is cached.

    Raises:
        Problem: 406 if the client accepts none of the offered media types.
    """
    form = choose_form(request, [JSON, *((PARQUET, CSV) if frame else ()), *((ARROW,) if frame and HAS_ARROW else ())])
    tag = digest if form == JSON else f"{digest}-{form.rpartition('.')[2].removeprefix('text/')}"
    # A response that may be compressed on its way has other bytes, so its ETag is weak.
    is_weak = form in (JSON, CSV) and "gzip" in request.headers.get("accept-encoding", "")
    headers = {"ETag": f'{"W/" if is_weak else ""}"{tag}"', **_HEADERS}
    if _has(request, tag):
        return Response(status_code=304, headers=headers)

    def body() -> bytes:
        if form == JSON:
            return to_json(content())
        assert frame is not None
        return _ENCODERS[form](_pieces(frame(), types and types()))

    if form == CSV:
        assert frame is not None
        return _csv_answer(frame(), headers)
    if form == PARQUET and stored is not None:
        encoded = stored()  # the reader of the table has its own cache entry
    else:
        encoded = _cached(request, digest, form, body) if use_cache else body()
    if form in (PARQUET, ARROW):  # do not compress: Parquet is compressed already, and Arrow is for fast connections
        headers["Content-Encoding"] = "identity"
    return Response(encoded, headers=headers, media_type=form)


def _csv_answer(rows: pd.DataFrame, headers: dict[str, str]) -> Response:
    """Return a table as CSV, a large one in pieces, since its text takes many times the memory of its values."""
    if len(rows) <= _CSV_ROWS:
        return Response(_csv(rows), headers=headers, media_type=CSV)
    starts = range(0, len(rows), _CSV_ROWS)
    pieces = (_csv(rows[start : start + _CSV_ROWS], header=start == 0) for start in starts)
    return StreamingResponse(pieces, headers=headers, media_type=CSV)


def _csv(rows: pd.DataFrame, *, header: bool = True) -> str:
    # With CRLF, a cell with either of both characters is quoted, and so begins no line.
    return _inert(rows).to_csv(index=False, header=header, lineterminator="\r\n")


def _inert(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose prompts no spreadsheet runs as a formula: those that look like one begin with an apostrophe.

    Tokens keep their exact text. Source: OWASP, CSV injection.
    """
    return rows.assign(text=rows["text"].astype(object).map(_without_formula)) if "text" in rows else rows


def _without_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def answer_file(request: Request, digest: str, name: str, media: str, content: Callable[[], bytes]) -> Response:
    """Return 304 if the client has this file, and otherwise the file as an attachment.

    Args:
        request: the request, with its header `If-None-Match`.
        digest: digest of the results behind the file and of its format; it becomes the ETag.
        name: name of the file.
        media: its media type.
        content: returns the file.
    """
    headers = {"ETag": f'"{digest}"', **_HEADERS}
    if _has(request, digest):
        return Response(status_code=304, headers=headers)
    headers |= {"Content-Disposition": f'attachment; filename="{name}"', "Content-Encoding": "identity"}
    return Response(content(), headers=headers, media_type=media)


def _cached(request: Request, digest: str, form: str, body: Callable[[], bytes]) -> bytes:
    """Return an encoded response from the cache, or encode it; its key is path, query, digest and media type."""
    cache: Cache = request.app.state.cache
    parts = request.scope["path"].encode(), request.scope["query_string"], digest.encode(), form.encode()
    # A query may be long, so the key is its hash.
    key = hashlib.sha256(b"\0".join(parts)).digest()

    def size(encoded: bytes) -> int:
        is_small = len(encoded) <= _CACHED_ANSWER_BYTES
        return len(encoded) + _ENTRY_BYTES if is_small else cache.limit_bytes + 1

    return cache.get(key, body, size)


def to_json(content: Any) -> bytes:
    """Return JSON; NaN and infinities become null."""
    return orjson.dumps(content, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


# Not python-mimeparse, which reads a malformed q as 1 and raises for a media type without a slash.
def choose_form(request: Request, offered: list[str]) -> str:
    """Return the media type of the parameter `format`, or else the offered one that the client's Accept prefers.

    Raises Problem 406 if it accepts none.
    """
    if chosen := _FORMS.get(request.query_params.get("format", "")):
        if chosen in offered:
            return chosen
        raise Problem(406, "not-acceptable", f"format: this route offers: {', '.join(offered)}")
    wanted = [_quality(part) for part in request.headers.get("accept", "*/*").split(",") if part.strip()]
    excluded = [media for media, quality in wanted if quality == 0]
    for media, quality in sorted(wanted or [("*/*", 1.0)], key=lambda one: -one[1]):
        for form in offered:
            if quality > 0 and form not in excluded and media in (form, f"{form.partition('/')[0]}/*", "*/*"):
                return form
    given = request.headers.get("accept", "")
    shown = given if len(given) < 60 else f"{given[:57]}…"
    raise Problem(406, "not-acceptable", f"Accept: given {shown!r}; this route offers: {', '.join(offered)}")


def _quality(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return media.lower(), float(parameter[2:])
            except ValueError:
                return media.lower(), 0.0
    return media.lower(), 1.0


def _has(request: Request, tag: str) -> bool:
    """Return whether the client has this ETag, weak or strong."""
    given = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return f'"{tag}"' in given or "*" in given


def _plain(value: Any) -> Any:
    """Convert a value of a type that orjson does not support to a list, a dictionary or a number."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _pieces(rows: pd.DataFrame, types: Mapping[str, Any] | None) -> Iterator[pd.DataFrame]:
    """Yield a table in pieces with the given types: the texts of a large table would take much memory at once."""
    if types is None:
        types = {str(name): "str" for name, kind in rows.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    for start in range(0, max(1, len(rows)), _BINARY_ROWS):
        yield rows[start : start + _BINARY_ROWS].astype(dict(types))


def _to_arrow(frames: Iterable[pd.DataFrame]) -> bytes:
    with _IMPORTING:
        if sys.modules.get("pyarrow", sys) is None:  # blocked for pandas, see serving.py
            del sys.modules["pyarrow"]
        import pyarrow as pa

    # Table.from_pandas would need pandas' own pyarrow support, which is blocked.
    def column(values: "pd.Series[Any]") -> Any:
        # Without its type, a column without a text would have the type null.
        kind = pa.string() if isinstance(values.dtype, pd.StringDtype) else None
        return pa.array(values.to_numpy(), kind, from_pandas=values.dtype.kind == "O")

    sink = pa.BufferOutputStream()
    writer: Any = None
    for frame in frames:
        batch = pa.record_batch({name: column(frame[name]) for name in frame})
        writer = writer or pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    writer.close()
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


_ENCODERS: dict[str, Callable[[Iterable[pd.DataFrame]], bytes]] = {PARQUET: encode_tables, ARROW: _to_arrow}
