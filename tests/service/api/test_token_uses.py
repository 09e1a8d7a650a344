"""Check when the last use of a token is stored, that no request waits for it, and who shows it."""

import json
import logging
import threading
from datetime import UTC, datetime

import pytest
from support.each import each
from support.serving import SPEC, bearer, client_of, copied
from typer.testing import CliRunner

from theodolite.api.credentials import (
    create_credential,
    hour_of,
    last_uses,
    list_credentials,
    revoke_credential,
    store_use,
)
from theodolite.api.token_uses import Uses
from theodolite.errors import StoreError
from theodolite_jobs.cli import app

NOON = datetime(2027, 1, 2, 12, 34, 56, tzinfo=UTC)


@pytest.fixture
def store(library, tmp_path):
    return copied(library, tmp_path, "tiny-0")


@pytest.fixture
def at_once(monkeypatch):
    """Run each thread of `Uses` to its end when it starts."""

    class Immediate(threading.Thread):
        def start(self):
            self.run()

    monkeypatch.setattr("theodolite.api.token_uses.threading.Thread", Immediate)


def printed(*arguments):
    found = CliRunner().invoke(app, ["token", *arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_use_is_stored_by_the_hour_beside_the_credentials(tmp_path):
    _, credential = create_credential(str(tmp_path), ["read"])
    assert last_uses(str(tmp_path)) == {}
    store_use(str(tmp_path), credential.id, NOON)
    assert last_uses(str(tmp_path)) == {credential.id: "2027-01-02T12:00:00+00:00"}
    assert (tmp_path / "tokens-used" / credential.id).read_text() == "2027-01-02T12:00:00+00:00"
    assert list_credentials(str(tmp_path)) == [credential]


def test_a_request_with_a_valid_token_stores_its_use(store, at_once):
    used, credential = create_credential(store, ["read"])
    expired, _ = create_credential(store, ["read"], days=0)
    client = client_of(store)
    for token in (expired, "nobody"):
        assert client.get("/v1/runs", headers=bearer(token)).status_code == 401
    client.get("/healthz", headers=bearer(used))
    assert last_uses(store) == {}
    assert client.get("/v1/runs", headers=bearer(used)).status_code == 200
    assert last_uses(store) == {credential.id: hour_of(datetime.now(UTC))}


def test_a_service_without_tokens_stores_no_use(store, at_once):
    assert client_of(store).get("/v1/runs").status_code == 200
    assert last_uses(store) == {}


def test_a_token_is_stored_once_an_hour(monkeypatch, at_once):
    stored, now = [], NOON
    monkeypatch.setattr("theodolite.api.token_uses.store_use", lambda *given: stored.append(given))

    class Clock(datetime):
        @classmethod
        def now(cls, _zone):
            return now

    monkeypatch.setattr("theodolite.api.token_uses.datetime", Clock)
    uses = Uses("store")
    for token in ("a", "b", "a", "a", "b"):
        uses.record(token)
    assert stored == [("store", "a", NOON), ("store", "b", NOON)]
    now = NOON.replace(hour=13, minute=0)
    uses.record("a")
    assert stored[2:] == [("store", "a", now)]


def test_a_guarded_body_and_its_route_store_one_use(store, monkeypatch, at_once):
    stored = []
    monkeypatch.setattr("theodolite.api.token_uses.store_use", lambda *given: stored.append(given))
    token, _ = create_credential(store, ["read", "submit"])
    assert client_of(store).post("/v1/spec/check", headers=bearer(token), json=SPEC).status_code == 200
    assert len(stored) == 1


def test_no_request_waits_for_a_slow_store(store, monkeypatch):
    started, may_end = threading.Event(), threading.Event()

    def slow(*_):
        started.set()
        may_end.wait(60)

    monkeypatch.setattr("theodolite.api.token_uses.store_use", slow)
    token, _ = create_credential(store, ["read"])
    assert client_of(store).get("/v1/runs", headers=bearer(token)).status_code == 200
    assert started.wait(60)
    may_end.set()


def test_a_store_that_refuses_writes_breaks_no_request(store, monkeypatch, at_once, caplog):
    def refuse(*_):
        raise StoreError("read-only")

    monkeypatch.setattr("theodolite.api.credentials.put", refuse)
    token, credential = create_credential(store, ["read"])
    client = client_of(store)
    with caplog.at_level(logging.WARNING):
        assert [client.get("/v1/runs", headers=bearer(token)).status_code for _ in range(3)] == [200] * 3
    (message,) = [record.getMessage() for record in caplog.records if record.name == "theodolite.api.token_uses"]
    assert message == f"the last use of token {credential.id} is not stored: read-only"


def test_revoking_a_token_deletes_its_use(tmp_path):
    store = str(tmp_path)
    _, first = create_credential(store, ["read"])
    _, second = create_credential(store, ["read"])
    for one in (first, second):
        store_use(store, one.id, NOON)
    assert revoke_credential(store, first.id)
    assert last_uses(store).keys() == {second.id}
    store_use(store, first.id, NOON)  # the service knows the token for a few more seconds
    assert last_uses(store).keys() == {second.id}


@each("content", [b"", b"soon", b"\xff", b"2027-01-02"])
def test_the_list_shows_no_use_that_cannot_be_read(tmp_path, content):
    _, credential = create_credential(str(tmp_path), ["read"])
    store_use(str(tmp_path), credential.id, NOON)
    (tmp_path / "tokens-used" / credential.id).write_bytes(content)
    shown = json.loads(printed("list", "--store", str(tmp_path), "--json"))["items"][0]["last_used"]
    assert shown is None or shown.startswith("2027-01-0")


def test_the_command_shows_the_last_use(tmp_path):
    store = str(tmp_path)
    _, used = create_credential(store, ["read"], "first")
    _, unused = create_credential(store, ["read", "submit"], "second")
    store_use(store, used.id, NOON)
    lines = {line.split()[0]: line for line in printed("list", "--store", store).splitlines()}
    assert lines[used.id] == f"{used.id}  read  no expiry  used 2027-01-02 12:00  first"
    assert lines[unused.id] == f"{unused.id}  read,submit  no expiry  not used  second"
    items = json.loads(printed("list", "--store", store, "--json"))["items"]
    shown = {item["id"]: item["last_used"] for item in items}
    assert shown == {used.id: "2027-01-02T12:00:00+00:00", unused.id: None}
