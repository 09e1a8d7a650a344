"""Check that one caller cannot occupy the service: which bodies are read, and whose responses are computed."""

import asyncio
import select
import socket
import threading
from contextlib import ExitStack, closing

import httpx
import pytest
from support.each import each
from support.listening import served
from support.serving import SPEC, assert_problem, bearer, client_of

from theodolite.api.app import create_app
from theodolite.api.bodies import UPLOADS
from theodolite.api.credentials import create_credential
from theodolite.api.guards import JSON_PLACES
from theodolite.api.problems import Problem
from theodolite.api.shares import THREADS, BodyPlaces, Turns
from theodolite.settings import Settings

CHECK = "/v1/spec/check"
WITH_BODY = [
    (method, path)
    for path, of_path in create_app(Settings(store="nowhere")).openapi()["paths"].items()
    for method, operation in of_path.items()
    if "requestBody" in operation
]


@pytest.fixture
def store(tmp_path):
    return str(tmp_path)


@each("method, path", WITH_BODY)
@each("scopes, status", [(["admin"], 403), ([], 401)])
def test_a_body_is_not_read_before_the_scope_is_known(store, monkeypatch, method, path, scopes, status):
    token, _ = create_credential(store, scopes or ["read"])
    monkeypatch.setattr("theodolite.api.guards.read_body", None)
    kind = "application/octet-stream" if path == UPLOADS else "application/json"
    headers = {"Content-Type": kind, **(bearer(token) if scopes else {})}
    answer = client_of(store).request(method, path.format(run_id="tiny-0"), content=b"{}", headers=headers)
    assert_problem(answer, status)
    assert answer.headers["connection"] == "close"


OPEN: list[ExitStack] = []
"""Keeps the places of each test; one that is collected would be free."""


def open_places(places, caller, address):
    held = ExitStack()
    held.enter_context(places.taken(caller, address))
    OPEN.append(held)
    return held


def test_places_are_limited_by_caller_by_address_and_in_all():
    places = BodyPlaces(2, 3, 4)
    first = open_places(places, "a", "10.0.0.1")
    open_places(places, "a", "10.0.0.2")
    with pytest.raises(Problem, match="reads 2 bodies of caller a, the maximum") as refused:
        open_places(places, "a", "10.0.0.3")
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    open_places(places, "b", "10.0.0.1")
    last = open_places(places, "c", "10.0.0.1")
    with pytest.raises(Problem, match=r"3 bodies from address 10\.0\.0\.1"):
        open_places(places, "d", "10.0.0.1")
    with pytest.raises(Problem, match="4 bodies in all"):
        open_places(places, "d", "10.0.0.4")
    first.close()
    last.close()
    open_places(places, "a", "10.0.0.1")
    open_places(places, "d", "10.0.0.4")


def test_an_address_and_a_token_of_the_same_name_are_counted_apart():
    places = BodyPlaces(1, 2, 8)
    open_places(places, "x", "y")
    open_places(places, "y", "x")


def test_places_that_are_free_take_no_memory():
    places = BodyPlaces(1, 1, 1)
    for number in range(100):
        open_places(places, f"{number}", f"{number}").close()
    assert not places._taken


def test_a_caller_waits_for_its_own_turns_only():
    async def take_turns():
        turns = Turns(2)
        first, _ = await turns.take("a"), await turns.take("a")
        third = asyncio.create_task(turns.take("a"))
        await asyncio.wait_for(turns.take("b"), 10)
        assert not third.done()
        first.release()
        await asyncio.wait_for(third, 10)

    asyncio.run(take_turns())


def half_sent(url, token, path=CHECK, kind="application/json"):
    """Open a request whose body does not arrive, and return its connection."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    fields = f"Host: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\nContent-Length: 1000"
    connection.sendall(f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n{{".encode())
    return connection


def test_slow_bodies_of_one_token_do_not_delay_those_of_another(store):
    hostile, credential = create_credential(store, ["read", "submit"])
    token, _ = create_credential(store, ["read", "submit"])
    with served(store, tokenless=False) as url, ExitStack() as held:
        slow = [held.enter_context(closing(half_sent(url, hostile))) for _ in range(3 * JSON_PLACES[0])]
        refused: list[socket.socket] = []
        while len(refused) < 2 * JSON_PLACES[0]:
            refused, _, _ = select.select(slow, [], [], 20)
            assert refused, "the service refused too few"
        answer = refused[0].recv(65536).decode()
        assert answer.startswith("HTTP/1.1 429")
        assert "retry-after: 1\r\n" in answer.lower()
        assert f"reads 8 bodies of caller {credential.id}, the maximum" in answer
        with httpx.Client(base_url=url, headers={"Host": "localhost"}) as client:
            assert client.post(CHECK, json=SPEC, headers=bearer(token)).status_code == 200
            assert_problem(client.post(CHECK, json=SPEC, headers=bearer(hostile)), 429)
            # An upload takes another place than a body of JSON.
            kind = {"Content-Type": "application/octet-stream"}
            sent = client.post(f"{UPLOADS}?type=txt", content=b"one\n", headers={**kind, **bearer(hostile)})
            assert sent.status_code == 201


def test_responses_of_one_token_do_not_occupy_all_threads(store, monkeypatch):
    hostile, _ = create_credential(store, ["read"])
    token, _ = create_credential(store, ["read"])
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow(*_arguments):
        begun.release()
        assert go_on.wait(60)
        return {}

    monkeypatch.setattr("theodolite.api.jobs.read_jobs", lambda *_: [])
    monkeypatch.setattr("theodolite.api.jobs.job_states", slow)
    with served(store, tokenless=False) as url:
        answers: list[int] = []

        def ask() -> None:
            answers.append(httpx.get(f"{url}/v1/jobs", headers=bearer(hostile), timeout=60).status_code)

        asking = [threading.Thread(target=ask) for _ in range(3 * THREADS)]
        for one in asking:
            one.start()
        for _ in range(THREADS - 1):
            assert begun.acquire(timeout=60)
        answer = httpx.post(f"{url}{CHECK}", json=SPEC, headers=bearer(token), timeout=60)
        assert answer.status_code == 200
        assert not begun.acquire(blocking=False)
        go_on.set()
        for one in asking:
            one.join(60)
        assert answers == [200] * len(asking)
