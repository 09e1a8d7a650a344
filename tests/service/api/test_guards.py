"""Check the guard: host, origin, content type and length of every request, and the security headers."""

import asyncio
import time

import anyio
import httpx
import orjson
import pytest
from support.each import each
from support.serving import SPEC, assert_problem, client_of

from theodolite.api.app import create_app
from theodolite.api.bodies import BODY_BYTES
from theodolite.settings import Settings

JSON = {"Content-Type": "application/json"}
CHECK = "/v1/spec/check"


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    return client_of(tmp_path_factory.mktemp("store"), hosts=["Theodolite.example"])


@each(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000", "LocalHost:80"],
)
def test_names_of_loopback_are_accepted(client, host):
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@each(
    "host",
    [
        "",
        ":8000",
        "evil.com",
        "evil.com:8000",
        "localhost.evil.com",
        "localhost.evil.com:80",
        "evil.com#localhost",
        "localhost@evil.com",
        "xlocalhost",
        "127.0.0.1.evil.com",
        "127.0.0.2",
        "0.0.0.0",
        "[::1",
        "::1",
        "[::1]evil",
        "[::2]",
        "2130706433",
        "theodolite.example",
        "localhost ",
        "localhost, evil.com",
    ],
)
def test_every_route_rejects_other_host_names(client, host):
    for path in ("/healthz", "/v1/runs", "/", "/metrics", "/nobody"):
        assert client.get(path, headers={"Host": host}).status_code == 421
    assert_problem(client.get("/v1/runs", headers={"Host": host}), 421, "localhost", "THEODOLITE_HOSTS")


def test_a_request_without_a_host_is_rejected(client):
    status, _, _ = ask(client.app, "GET", "/healthz", {})
    assert status == 421


@each("host", ["theodolite.example", "THEODOLITE.EXAMPLE:443", "localhost:1"])
def test_names_of_the_deployment_are_accepted(named, host):
    assert named.get("/healthz", headers={"Host": host}).status_code == 200
    assert_problem(named.get("/healthz", headers={"Host": f"x.{host}"}), 421, "theodolite.example")


@each(
    "origin, status",
    [
        (None, 200),
        ("http://localhost", 200),
        ("https://localhost", 200),
        ("HTTP://LOCALHOST", 200),
        ("http://localhost:8000", 403),
        ("http://evil.com", 403),
        ("http://localhost.evil.com", 403),
        ("http://evil.com/localhost", 403),
        ("http://localhost@evil.com", 403),
        ("http://127.0.0.1", 403),
        ("null", 403),
        ("", 403),
        ("localhost", 403),
        ("http://[evil", 403),
        ("http://[x]", 403),
    ],
)
def test_requests_from_pages_of_other_sites_are_rejected(client, origin, status):
    given = {} if origin is None else {"Origin": origin}
    for answer in (
        client.get("/v1/runs", headers=given),
        client.post(CHECK, json=SPEC, headers=given),
        client.delete("/v1/jobs/" + "0" * 64, headers=given),
    ):
        if status == 403:
            assert_problem(answer, 403, "other sites")
        else:
            assert answer.status_code != 403
        assert "access-control-allow-origin" not in answer.headers


@each(
    "kind",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", "a/json"],
)
def test_a_body_with_another_content_type_than_json_is_rejected(client, kind):
    for path in (CHECK, "/v1/jobs"):
        given = {} if kind is None else {"Content-Type": kind}
        assert_problem(client.post(path, content=b"{}", headers=given), 415, "application/json")


@each("kind", ["application/json", "Application/JSON; charset=utf-8", "application/json;x=y"])
def test_every_spelling_of_the_json_content_type_is_accepted(client, kind):
    answer = client.post(CHECK, content=orjson.dumps(SPEC), headers={"Content-Type": kind})
    assert answer.status_code == 200, answer.text


def test_a_body_over_the_limit_is_rejected_before_it_is_read(client):
    assert_problem(client.post(CHECK, content=b" " * (BODY_BYTES + 1), headers=JSON), 413, str(BODY_BYTES))
    padded = orjson.dumps(SPEC)
    padded += b" " * (BODY_BYTES - len(padded))
    assert client.post(CHECK, content=padded, headers=JSON).status_code == 200


def test_a_chunked_body_is_rejected_at_the_limit(client):
    taken = 0

    def pieces():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b" " * 2**16

    assert_problem(client.post(CHECK, content=pieces(), headers=JSON), 413)
    sent = 0

    async def receive():
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": b" " * 2**16, "more_body": True}

    status, _, _ = ask(client.app, "POST", CHECK, {"host": "localhost", "content-type": "application/json"}, receive)
    assert status == 413
    assert sent <= 2 * (BODY_BYTES // 2**16 + 1)  # as many are discarded, so that the client reads the response


def test_a_body_without_its_end_is_not_used(client):
    messages = iter([{"type": "http.request", "body": orjson.dumps(SPEC), "more_body": True}])

    async def receive():
        return next(messages, {"type": "http.disconnect"})

    given = {"host": "localhost", "content-type": "application/json"}
    status, _, content = ask(client.app, "POST", CHECK, given, receive)
    assert status == 400
    assert b"closed before the end of the body" in content


@each("length", ["-1", "x", "1e9", "", "9" * 400])
def test_an_invalid_content_length_is_ignored_or_rejected(client, length):
    given = {"host": "localhost", "content-type": "application/json", "content-length": length}
    status, _, _ = ask(client.app, "POST", CHECK, given, once(orjson.dumps(SPEC)))
    assert status == (413 if length.isdigit() else 200)


@each("length", ["²", "9" * 5000])
def test_a_content_length_that_int_rejects_does_not_raise(client, length):
    given = {"host": "localhost", "content-type": "application/json", "content-length": length}
    status, _, _ = ask(client.app, "POST", CHECK, given, once(orjson.dumps(SPEC)))
    assert status in (200, 413)


EXPECTED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@each(
    "method, path, headers",
    [
        ("GET", "/healthz", {}),
        ("GET", "/v1/runs", {}),
        ("GET", "/v1/runs/nobody", {}),
        ("GET", "/nobody", {}),
        ("GET", "/docs", {}),
        ("GET", "/openapi.json", {}),
        ("GET", "/static/plotly.min.js", {}),
        ("GET", "/static/nobody.js", {}),
        ("GET", "/metrics", {}),
        ("PUT", "/v1/runs", JSON),
        ("GET", "/v1/runs", {"Host": "evil.com"}),
        ("GET", "/v1/runs", {"Origin": "http://evil.com"}),
        ("GET", "/v1/runs", {"Accept": "text/html"}),
        ("POST", CHECK, {"Content-Type": "text/plain"}),
        ("POST", CHECK, {"Content-Type": "application/json", "Content-Length": str(BODY_BYTES + 1)}),
        ("POST", "/v1/jobs", JSON),
    ],
)
def test_every_response_has_the_security_headers(client, method, path, headers):
    answer = client.request(method, path, headers=headers)
    for name, value in EXPECTED.items():
        assert answer.headers.get(name) == value
    policy = answer.headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]


def test_an_unexpected_error_is_a_problem_with_the_security_headers(client, monkeypatch):
    monkeypatch.setattr("theodolite.api.health.list_run_ids", lambda _: 1 / 0)
    answer = client.get("/readyz")
    assert_problem(answer, 500)
    assert "division" not in answer.text
    assert answer.headers.get("x-content-type-options") == "nosniff"


def test_an_unreachable_store_returns_503(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    client = client_of(tmp_path / "file" / "store")
    for path in ("/readyz", "/v1/runs"):
        assert client.get(path).status_code in (200, 503)
    assert client.get("/healthz").json() == {"status": "alive"}


def test_a_flood_of_readiness_checks_lists_the_store_once(monkeypatch, tmp_path):
    listed = []

    def slow(store):
        listed.append(store)
        time.sleep(0.1)
        return []

    monkeypatch.setattr("theodolite.api.health.list_run_ids", slow)
    app = create_app(Settings(store=str(tmp_path)))

    async def flood():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await asyncio.gather(*(client.get("/readyz") for _ in range(200)))

    assert {answer.status_code for answer in asyncio.run(flood())} == {200}
    assert len(listed) == 1


def once(body):
    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def ask(app, method, path, headers, receive=None):
    """Send a request directly to the app, since a client would correct its headers."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    messages = []

    async def send(message):
        messages.append(message)

    anyio.run(app, scope, receive or once(b""), send)
    start = messages[0]
    return start["status"], dict(start["headers"]), b"".join(one.get("body", b"") for one in messages[1:])


def test_apps_for_several_stores_are_independent(tmp_path):
    apps = [create_app(Settings(store=str(tmp_path / name)), open_without_tokens=True) for name in ("a", "b")]
    assert apps[0].state.cache is not apps[1].state.cache
