"""A bucket over S3 (moto) behind a proxy that disturbs the requests which a test selects.

The proxy disturbs a request before the bucket sees it or after it took effect, so that the client gets no true answer.
"""

import http.client
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Timer
from typing import Any

import httpx
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

BUCKET = "surveys"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}

REFUSALS = {"500": 500, "503": 503, "429": 429}
FAULTS = (
    *(f"{status} before" for status in REFUSALS),
    *(f"{status} after" for status in REFUSALS),
    "reset before",
    "reset after",
    "slow",
    "truncated",  # the body of the response ends early
    "lost delete",  # a delete is acknowledged and does nothing
    "late listing",  # a listing does not have what was written in the last seconds
)
"""What the proxy can do with a request."""

LATE_SECONDS = 1.0
"""Time by which a late listing is late."""

_Choose = Callable[[str, str], str | None]
"""Returns the fault of a request, by its method and its key, or None."""


@dataclass
class FaultyBucket:
    """A bucket, and the faults of its requests.

    Attributes:
        url: the store's URL.
        choose: selects the fault of each request.
        disturbed: method, key and fault of each request whose fault had an effect.
        signature: the header of the last request that names its key and its region.
        conditions: what the bucket does with the header If-None-Match: obey, ignore, or refuse it.
        refusal: status and code of an error with which the bucket answers every request, or None.
    """

    url: str
    environment: dict[str, str]
    choose: _Choose = lambda _method, _key: None
    disturbed: list[tuple[str, str, str]] = field(default_factory=list)
    signature: str = ""
    conditions: str = "obey"
    refusal: tuple[int, str] | None = None

    def once(self, method: str, part: str, fault: str) -> None:
        """Disturb the next request of a method whose key contains `part`."""
        waiting = [fault]

        def choose(requested: str, key: str) -> str | None:
            return waiting.pop() if waiting and requested == method and part in key else None

        self.choose = choose


@contextmanager
def faulty_bucket() -> Iterator[FaultyBucket]:
    """Run a bucket behind its proxy."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto logs each request
    WSGIRequestHandler.disable_nagle_algorithm = True
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    assert httpx.put(f"http://{host}:{port}/{BUCKET}", trust_env=False).is_success
    bucket = FaultyBucket(f"s3://{BUCKET}/store", {})
    listings: dict[str, bytes] = {}  # the last answer to each listing, for LATE_SECONDS

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Small packets would wait for each other's acknowledgement, 40 ms for each request.
        disable_nagle_algorithm = True
        wbufsize = 65536

        def log_message(self, *_: Any) -> None:
            pass

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            bucket.signature = self.headers.get("Authorization", "")
            condition = self.headers["If-None-Match"]
            if bucket.conditions == "ignore":
                del self.headers["If-None-Match"]
            unknown = (501, "NotImplemented") if condition and bucket.conditions == "refuse" else None
            if refusal := bucket.refusal or unknown:
                status, code = refusal
                self._answer(status, f"<Error><Code>{code}</Code><Region>eu-west-1</Region></Error>".encode())
                return
            fault = bucket.choose(self.command, self.path)
            is_delete = self.command == "POST" and self.path.endswith("?delete")
            is_listing = self.command == "GET" and "list-type=2" in self.path
            if fault == "lost delete" and not is_delete:
                fault = None
            if fault == "late listing" and not (is_listing and self.path in listings):
                fault = None
            if fault is not None:
                bucket.disturbed.append((self.command, self.path, fault))
            kind, _, moment = (fault or "").partition(" ")
            if fault == "lost delete":
                deleted = [b"<Deleted><Key>%s</Key></Deleted>" % key for key in re.findall(b"<Key>(.*?)</Key>", body)]
                self._answer(200, b"<DeleteResult>%s</DeleteResult>" % b"".join(deleted))
                return
            if fault == "late listing":
                self._answer(200, listings[self.path], {"Content-Type": "application/xml"})
                return
            if moment == "before":
                self._fail(kind)
                return
            if kind == "slow":
                time.sleep(0.5)
            connection = http.client.HTTPConnection(host, port, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response = connection.getresponse()
            content = response.read()
            connection.close()
            if is_listing and response.status == 200:
                listings[self.path] = content
                Timer(LATE_SECONDS, listings.pop, [self.path, None]).start()
            if moment == "after":
                self._fail(kind)
                return
            self.send_response(response.status)
            skipped = {"connection", "transfer-encoding", "date", "server"}
            headers = {name: value for name, value in response.getheaders() if name.lower() not in skipped}
            if self.command != "HEAD" and response.status not in (204, 304):
                headers["content-length"] = str(len(content))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if kind == "truncated" and content:
                self.wfile.write(content[: len(content) // 2])
                self._reset()
            elif self.command != "HEAD":
                self.wfile.write(content)

        def _fail(self, kind: str) -> None:
            if kind == "reset":
                self._reset()
                return
            self._answer(REFUSALS[kind], b"<Error><Code>InternalError</Code></Error>")

        def _answer(self, status: int, content: bytes, headers: Mapping[str, str] = {}) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _reset(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Print the traceback of an error, except of a client that was killed."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    proxy = Server(("127.0.0.1", 0), Proxy)
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    bucket.environment = {**ENVIRONMENT, "AWS_ENDPOINT": f"http://127.0.0.1:{proxy.server_address[1]}"}
    try:
        yield bucket
    finally:
        proxy.shutdown()
        proxy.server_close()
        server.stop()
