"""Limits of connections, which hold for callers without a credential: deadlines, and their number."""

import asyncio
import logging
import resource
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Time in which the head of a request must arrive, from the connection or from the request's first byte."""

MAX_CONNECTIONS = 8192
"""Maximum number of open connections; further ones are closed at once."""

_OTHER_FILES = 256
"""Files that the service needs besides its connections."""

_LOG_SECONDS = 60.0
"""Minimum time between two log lines about connections that were not accepted."""

_log = logging.getLogger(__name__)


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request head does not arrive within HEAD_SECONDS.

    Uvicorn itself closes a connection that idles after a response, and waits forever for the head of a request.
    """

    head_seconds = HEAD_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        self._deadline: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()  # Uvicorn would wait for a request and answer 503
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Pass the data on; stop the deadline when the head is complete."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline."""
        self._stop_deadline()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connection_limit() -> int:
    """Raise the process's limit of open files as far as needed and allowed; return the number of connections it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(MAX_CONNECTIONS, soft - _OTHER_FILES))


class AcceptErrors:
    """Exception handler of an event loop: logs connections that were not accepted once a minute, with their number.

    At the limit of open files asyncio reports each attempt to accept a connection, thousands in a second.
    """

    def __init__(self) -> None:
        self.count, self.logged_at = 0, float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count and log a failed accept; pass on everything else."""
        if "accept" not in context["message"]:
            loop.default_exception_handler(context)
            return
        self.count += 1
        if time.monotonic() - self.logged_at >= _LOG_SECONDS:
            _log.error("%d connections could not be accepted: %s", self.count, context.get("exception"))
            self.count, self.logged_at = 0, time.monotonic()
