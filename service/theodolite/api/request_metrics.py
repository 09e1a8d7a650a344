"""Count and time requests by route."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from theodolite.metrics import HTTP_REQUESTS, HTTP_SECONDS


class Measured:
    """Middleware that counts and times requests; the label `route` is the path's pattern, so it has few values."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the app, and record its status and time."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_record)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            HTTP_REQUESTS.labels(route, str(status)).inc()
            HTTP_SECONDS.labels(route).observe(time.perf_counter() - start)
