"""Limits of connections, which hold for callers without a credential: deadlines, and their number."""

import asyncio
import logging
import resource
import time
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Time in which the head of a request must arrive, from the connection or from the request's first byte."""

READ_SECONDS = 60.0
"""Time in which a client must read what has been sent: a whole response, or one piece of a file of the page."""

MAX_CONNECTIONS = 8192
"""Maximum number of open connections; further ones are closed at once."""

_OTHER_FILES = 256
"""Files that the service needs besides its connections."""

_LOG_SECONDS = 60.0
"""Minimum time between two log lines with the same warning."""

_log = logging.getLogger(__name__)


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose client does not send a request's head, or does not read a response.

    Uvicorn itself closes a connection that idles after a response; for these two it waits forever.
    """

    head_seconds, read_seconds = HEAD_SECONDS, READ_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        self._deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # any byte that the client has not read starts the deadline
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()  # Uvicorn would wait for a request and answer 503
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Pass the data on; stop the deadline when the head is complete."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadlines."""
        self._stop_deadline()
        self._stop_read_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the deadline of reading: the client has not read what was sent."""
        super().pause_writing()
        self._read_deadline = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the deadline of reading."""
        self._stop_read_deadline()
        super().resume_writing()

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_read_deadline(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None


def connection_limit() -> int:
    """Raise the process's limit of open files as far as needed and allowed; return the number of connections it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(16, min(MAX_CONNECTIONS, soft - _OTHER_FILES))


class OnceAMinute(logging.Filter):
    """Passes each warning once a minute, with the number of times that it came in between.

    Callers without a credential cause warnings: invalid requests, or connections above the limit of open files.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out: Counter[str] = Counter()
        self._passed_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; the key is its message without arguments, so there are few."""
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        now, key = time.monotonic(), str(record.msg)
        if now - self._passed_at.get(key, float("-inf")) < _LOG_SECONDS:
            self._left_out[key] += 1
            return False
        if left_out := self._left_out.pop(key, 0):
            record.msg = f"{key} ({left_out} more since the last such line)"
        self._passed_at[key] = now
        return True


def log_warnings_once_a_minute() -> None:
    """Limit the log of connections and invalid requests, uvicorn's and this module's, and of damaged labels."""
    for logger in (_log, *map(logging.getLogger, ("uvicorn.error", "theodolite.store.labels"))):
        if not any(isinstance(one, OnceAMinute) for one in logger.filters):
            logger.addFilter(OnceAMinute())


def log_failed_accept(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler of an event loop: logs a connection that was not accepted without a traceback.

    At the limit of open files asyncio reports each attempt to accept a connection, thousands in a second.
    """
    if "accept" in context["message"]:
        _log.error("a connection could not be accepted: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)
