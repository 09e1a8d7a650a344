"""Log one line for each request, as JSON: never a token, a query, or the text of a prompt."""

import json
import logging
import re
import secrets
import sys
from datetime import UTC, datetime

from starlette.datastructures import Headers
from starlette.types import Scope

_log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_TOKEN = re.compile(r"theodolite_[0-9a-f]+_[\w-]+")

_LONGEST = 200
"""Maximum length of a path in the log: every client can send long ones."""


def log_to_stderr() -> None:
    """Write the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers, _log.propagate = [handler], False
    _log.setLevel(logging.INFO)


def name_request(scope: Scope) -> str:
    """Return the id of a request: its `X-Request-ID`, which a proxy may have added, or a random one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _ID.fullmatch(given) and not _TOKEN.search(given) else secrets.token_hex(8)


def log_request(scope: Scope, status: int, n_bytes: int, seconds: float) -> None:
    """Log a request whose response has ended.

    Args:
        scope: its state has the request's id and, if a valid bearer token was needed and sent, the caller.
        status: status of the response.
        n_bytes: length of the body as it was sent.
        seconds: time since the start of the request.
    """
    if not _log.isEnabledFor(logging.INFO):
        return
    caller = scope["state"].get("caller")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "method": scope["method"][:_LONGEST],
        "path": _TOKEN.sub("theodolite_…", scope["path"])[:_LONGEST],
        "status": status,
        "duration_ms": round(seconds * 1000, 1),
        "bytes": n_bytes,
        "token": caller.id if caller else "-",
        "request_id": scope["state"]["request_id"],
    }
    _log.info("%s", json.dumps(line))
