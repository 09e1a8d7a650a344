"""Count, time and log requests."""

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from theodolite.api.access_log import log_request, name_request
from theodolite.metrics import HTTP_REQUESTS, HTTP_SECONDS


class Measured:
    """Middleware that counts and times requests, logs them, and returns each request's id as `X-Request-ID`.

    The label `route` of the metrics is the path's pattern, so it has few values.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the app, and record its status, its time and the length of its response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, n_bytes, is_stream = time.perf_counter(), 500, 0, False
        # All copies of the scope share its state.
        request_id = scope.setdefault("state", {})["request_id"] = name_request(scope)

        async def send_and_record(message: Message) -> None:
            nonlocal status, n_bytes, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            n_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, send_and_record)
        finally:
            route, seconds = getattr(scope.get("route"), "path_format", "none"), time.perf_counter() - start
            HTTP_REQUESTS.labels(route, str(status)).inc()
            if not is_stream:  # events last as long as the client listens
                HTTP_SECONDS.labels(route).observe(seconds)
            log_request(scope, status, n_bytes, seconds)
