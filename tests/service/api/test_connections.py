"""What callers without a credential can do to connections: deadlines, early refusals, and no smuggled requests."""

import asyncio
import logging
import socket
import time
from contextlib import closing, suppress

import plotly.offline
import pytest
import uvicorn
from support.each import each
from support.listening import served
from uvicorn.server import ServerState

from theodolite.api import bodies, connections
from theodolite.api.connections import DeadlineProtocol
from theodolite.api.credentials import create_credential

HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/spec/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SECONDS = 20  # after which a test counts as failed


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with a bearer token."""
    folder = str(tmp_path_factory.mktemp("store"))
    create_credential(folder, ["read"])
    return folder


@pytest.fixture
def connect(store, monkeypatch):
    """A function that connects to a service whose deadlines are short."""
    monkeypatch.setattr(DeadlineProtocol, "head_seconds", 0.3)
    monkeypatch.setattr(DeadlineProtocol, "read_seconds", 0.3)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(bodies, "DISCARD_SECONDS", 0.3)
    with served(store) as url:
        host, port = url.removeprefix("http://").split(":")
        yield lambda: closing(socket.create_connection((host, int(port)), timeout=SECONDS))


def everything(connection):
    """Return all that the service sends until it closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, HEAD + b"X: " + b"y" * 4000])
def test_a_connection_whose_head_does_not_arrive_is_closed(connect, sent):
    with connect() as connection:
        connection.sendall(sent)
        assert everything(connection) == b""


def test_the_head_of_a_later_request_has_a_deadline_too(connect):
    with connect() as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /heal")
        assert b"HTTP/1.1" not in everything(connection)


def test_a_complete_head_in_parts_is_answered(connect):
    with connect() as connection:
        for part in (HEAD[:10], HEAD[10:], b"\r\n"):
            connection.sendall(part)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_its_response_is_disconnected(connect):
    whole = len(plotly.offline.get_plotlyjs())
    for seconds in (2, 10, 60):  # a busy machine may send nothing for a while
        with connect() as connection:
            connection.sendall(b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(seconds)
            received = everything(connection)
        if len(received) < whole:
            break
    assert received.startswith(b"HTTP/1.1 200")
    assert len(received) < 4e6 < whole


def test_the_last_bytes_of_a_response_have_a_deadline_too():
    class Quick(DeadlineProtocol):
        head_seconds = read_seconds = 0.3

    async def answer(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"60000")]})
        await send({"type": "http.response.body", "body": b"x" * 60_000})

    async def disconnected():
        config = uvicorn.Config(answer, timeout_keep_alive=1, log_level="warning", lifespan="off")
        config.load()
        loop, state = asyncio.get_running_loop(), ServerState()
        service, client = socket.socketpair()
        service.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        service.setblocking(False)
        await loop.connect_accepted_socket(lambda: Quick(config, state, {}, loop), service)
        client.sendall(HEAD + b"\r\n")
        with closing(client):
            for _ in range(SECONDS * 10):
                await asyncio.sleep(0.1)
                if not state.connections:
                    return True
        return False

    assert asyncio.run(disconnected())


def test_a_body_without_a_credential_is_refused_before_it_arrives(connect):
    with connect() as connection:
        connection.sendall(POST + b"Content-Length: 1000000\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


def test_a_client_that_still_sends_reads_why_it_is_refused(connect):
    with connect() as connection:
        connection.sendall(POST + b"Content-Length: 200000\r\n\r\n")
        for _ in range(20):  # the service would reset the connection if it closed it at once
            connection.sendall(b" " * 10_000)
            time.sleep(0.002)
        assert everything(connection).startswith(b"HTTP/1.1 401")


def test_a_body_that_does_not_arrive_is_refused(store, connect):
    token, _ = create_credential(store, ["read"])
    with connect() as connection:
        connection.sendall(POST + f"Authorization: Bearer {token}\r\nContent-Length: 1000\r\n\r\n{{".encode())
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body did not arrive within" in answer


@each(
    "fields",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd",
        b"Content-Length: +4\r\n\r\nabcd",
        b"Content-Length: 4, 4\r\n\r\nabcd",
        b"Content-Length : 4\r\n\r\nabcd",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n",
        b" Content-Length: 4\r\n\r\nabcd",
    ],
)
def test_no_second_request_is_smuggled_behind_an_ambiguous_length(connect, fields):
    smuggled = b"GET /v1/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect() as connection:
        connection.sendall(POST + fields + smuggled)
        answer = everything(connection)
    assert b"/v1/smuggled" not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer or answer.split()[1] in (b"400", b"401", b"415")


@pytest.fixture
def logged(monkeypatch):
    """The lines of the log; what earlier tests logged does not limit them."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    for name in ("theodolite.api.connections", "uvicorn.error"):
        logger = logging.getLogger(name)
        monkeypatch.setattr(logger, "filters", [type(one)() for one in logger.filters])
        monkeypatch.setattr(logger, "handlers", [handler])
        monkeypatch.setattr(logger, "level", logging.WARNING)
    return lines


def test_connections_that_cannot_be_accepted_are_logged_once_a_minute_with_their_number(logged, monkeypatch):
    connections.log_warnings_once_a_minute()
    loop = asyncio.new_event_loop()
    failed = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    with closing(loop):
        for _ in range(5000):
            connections.log_failed_accept(loop, failed)
        assert logged == ["a connection could not be accepted: [Errno 24] Too many open files"]
        monkeypatch.setattr(connections, "_LOG_SECONDS", 0)
        connections.log_failed_accept(loop, failed)
    assert logged[1:] == [f"{logged[0]} (4999 more since the last such line)"]


def test_invalid_requests_are_logged_once_a_minute(connect, logged):
    for _ in range(20):
        with connect() as connection:
            connection.sendall(b"no HTTP at all\r\n\r\n")
            assert everything(connection).startswith(b"HTTP/1.1 400")
    assert logged == ["Invalid HTTP request received."]
