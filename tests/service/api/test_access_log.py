"""Check the log of requests: its fields, the caller, and that it contains no secret."""

import json
import logging
import re
from datetime import UTC, datetime, timedelta

import pytest
from support.each import each
from support.serving import SPEC, bearer, client_of, configured, copied

from theodolite.api import access_log
from theodolite.api.access_log import log_to_stderr
from theodolite.api.credentials import create_credential
from theodolite.settings import Settings

LOG = access_log.__name__


@pytest.fixture
def store(library, tmp_path):
    return copied(library, tmp_path, "tiny-0")


@pytest.fixture
def lines(caplog):
    """Return the lines that were logged since the last call."""
    caplog.set_level(logging.INFO, logger=LOG)

    def logged():
        found = [json.loads(record.getMessage()) for record in caplog.records if record.name == LOG]
        caplog.clear()
        return found

    return logged


def test_a_line_describes_a_request_and_its_response(client, lines):
    answer = client.get("/v1/runs/tiny-0/curves?statistic=auroc", headers={"Accept-Encoding": "identity"})
    (line,) = lines()
    assert list(line) == ["time", "method", "path", "status", "duration_ms", "bytes", "token", "request_id"]
    assert datetime.now(UTC) - datetime.fromisoformat(line["time"]) < timedelta(minutes=1)
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/runs/tiny-0/curves", 200)
    assert line["bytes"] == len(answer.content)
    assert line["duration_ms"] > 0
    assert line["token"] == "local"
    assert line["request_id"] == answer.headers["x-request-id"]


def test_the_log_counts_the_bytes_that_were_sent(client, lines):
    plain = len(client.get("/v1/analyses", headers={"Accept-Encoding": "identity"}).content)
    client.get("/v1/analyses", headers={"Accept-Encoding": "gzip"})
    client.head("/v1/analyses")
    sent = [line["bytes"] for line in lines()]
    assert sent[0] == plain
    assert 0 < sent[1] < plain
    assert sent[2] == 0


def test_the_log_names_the_token_of_each_caller(store, lines):
    token, credential = create_credential(store, ["read"])
    client = client_of(store)
    client.get("/v1/runs", headers=bearer(token))
    client.head("/v1/runs", headers=bearer(token))
    client.post("/v1/spec/check", headers=bearer(token), json=SPEC)
    client.post("/v1/jobs", headers=bearer(token), json=SPEC)  # it has no scope submit
    client.get("/v1/runs", headers=bearer(token + "x"))
    client.get("/v1/runs")
    client.get("/healthz", headers=bearer(token))  # needs no token, so none is read
    logged = [(line["status"], line["token"]) for line in lines()]
    one = credential.id
    assert logged == [(200, one), (200, one), (200, one), (403, one), (401, "-"), (401, "-"), (200, "-")]


def test_requests_that_the_guard_rejects_and_failures_are_logged(client, lines, monkeypatch, caplog):
    client.get("/v1/runs", headers={"Host": "evil.example"})
    client.options("/v1/runs")
    assert [line["status"] for line in lines()] == [421, 204]
    monkeypatch.setattr("theodolite.api.health.list_run_ids", lambda _: 1 / 0)
    answer = client_of("nowhere").get("/readyz")
    (error,) = [record.getMessage() for record in caplog.records if record.name == "theodolite.api.guards"]
    assert answer.headers["x-request-id"] in error
    assert [line["status"] for line in lines()] == [500]


def test_the_log_contains_no_token_query_or_text(store, lines):
    token, _ = create_credential(store, ["read", "submit"])
    client = client_of(store)
    client.get(f"/v1/runs?model={token}&contrast=QUERY-SECRET", headers=bearer(token))
    client.get(f"/v1/runs/{token}", headers=bearer(token))
    client.get("/v1/runs", headers={**bearer(token), "X-Request-ID": token, "Cookie": "COOKIE-SECRET"})
    client.post("/v1/spec/check", headers=bearer(token), json={**SPEC, "name": "BODY-SECRET"})
    logged = json.dumps(lines())
    for secret in (token, token.split("_", 2)[2], "SECRET"):
        assert secret not in logged
    assert "/v1/runs/theodolite_" in logged


def test_a_path_cannot_forge_or_flood_the_log(client, lines, caplog):
    client.get("/x%0a%7B%22status%22:200%7D%e2%80%a8" + "a" * 5000)
    (record,) = [record for record in caplog.records if record.name == LOG]
    assert len(record.getMessage().splitlines()) == 1
    assert len(record.getMessage()) < 600
    (line,) = lines()
    assert line["path"].startswith('/x\n{"status":200}')


@pytest.mark.parametrize("given", ["0123456789abcdef", "a.b_c-D", "x" * 64])
def test_the_id_of_a_proxy_is_kept(client, lines, given):
    answer = client.get("/healthz", headers={"X-Request-ID": given})
    assert answer.headers.get_list("x-request-id") == [given] == [line["request_id"] for line in lines()]


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "<script>", "é"])
def test_an_invalid_id_is_replaced(client, lines, given):
    answers = [client.get("/healthz", headers={"X-Request-ID": given.encode()}) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids == [line["request_id"] for line in lines()]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("[0-9a-f]{16}", one) for one in ids)


def test_the_log_goes_to_standard_error_only(client, capsys, monkeypatch):
    logger = logging.getLogger(LOG)
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    log_to_stderr()
    client.get("/healthz")
    logger.setLevel(logging.NOTSET)  # also empties the cache of levels
    printed = capsys.readouterr()
    assert json.loads(printed.err)["path"] == "/healthz"
    assert printed.out == ""


@each("is_on", [True, False])
def test_a_setting_switches_the_log(tmp_path, monkeypatch, is_on):
    called = []
    monkeypatch.setattr("theodolite.api.access_log.log_to_stderr", lambda: called.append(1))
    monkeypatch.setenv("THEODOLITE_ACCESS_LOG", str(is_on).lower())
    configured(Settings(store=str(tmp_path)), monkeypatch)
    assert bool(called) == is_on
