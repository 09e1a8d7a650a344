"""Serve the page, its scripts and the API's documentation.

The service loads Plotly's script from its Python package, so that browsers need no CDN.
"""

import gzip
import threading
from collections.abc import AsyncIterator
from functools import cache
from importlib import resources
from typing import Annotated

import plotly.offline
from fastapi import APIRouter, Path, Request
from fastapi.responses import Response, StreamingResponse

from theodolite.api.problems import Problem
from theodolite.overview.view import overview_style
from theodolite.store.checksums import sha256

router = APIRouter(include_in_schema=False)

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PIECE_BYTES = 16384

_PACKING = threading.Lock()

_DOCUMENTATION = ("swagger-ui-bundle.js", "swagger-ui.css")


@router.get("/")
def page(request: Request) -> Response:
    """Return the page."""
    return _static(request, "index.html")


@router.get("/docs")
def documentation(request: Request) -> Response:
    """Return the API's interactive documentation."""
    return _static(request, "docs.html")


@router.get("/static/{name}")
def static(request: Request, name: Annotated[str, Path(pattern=r"^[a-z0-9.-]{1,60}$")]) -> Response:
    """Return a script, style or image of the page."""
    return _static(request, name)


def _static(request: Request, name: str) -> Response:
    try:
        with _PACKING:  # of the first requests, one packs the file
            plain, packed, digest = _contents(name)
    except FileNotFoundError as error:  # `functools.cache` does not cache exceptions
        raise Problem(404, "http", f"there is no page or file at {request.url.path}") from error
    headers = {"ETag": f'"{digest}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if f'"{digest}"' in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    media_type = _TYPES[name[name.rindex(".") :]]
    content = plain
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = packed, "gzip"
    headers["Content-Length"] = str(len(content))
    return StreamingResponse(_pieces(content), headers=headers, media_type=media_type)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    """Yield a file in pieces, so that a client that does not read holds one piece in memory and not the file."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


@cache
def _contents(name: str) -> tuple[bytes, bytes, str]:
    """Return a file, the file gzipped, and its digest, from the cache if possible; raises FileNotFoundError."""
    if name == "plotly.min.js":
        content = str(plotly.offline.get_plotlyjs()).encode()
    elif name == "overview.css":  # the report and notebooks have it too
        content = overview_style().encode()
    elif name in _DOCUMENTATION:
        content = (resources.files("fastapi_offline") / "static" / name).read_bytes()
    else:
        file = resources.files("theodolite.api") / "web" / name
        if name[name.rfind(".") :] not in _TYPES or not file.is_file():
            raise FileNotFoundError(name)
        content = file.read_bytes()
    return content, gzip.compress(content, 6), sha256(content)[:32]
