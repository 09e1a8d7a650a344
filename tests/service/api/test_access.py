"""Check tokens, scopes and owners, and that no log contains tokens or prompts."""

import asyncio
import logging
import time
from functools import partial
from pathlib import Path

import pytest
from support.analysing import analyse
from support.serving import REFUSAL, SPEC, assert_problem, bearer, client_of, copied, draw_sets
from support.stored import store_run

from theodolite.api.access import Access
from theodolite.api.credentials import create_credential, list_credentials, revoke_credential
from theodolite.api.problems import Problem
from theodolite.store.cache import Cache
from theodolite.submission.job_store import read_jobs
from theodolite_jobs.report.page import write_report

JOB = "/v1/jobs/" + "0" * 64
READS = ["/v1/runs", "/v1/runs/tiny-0", "/v1/runs/tiny-0/curves", "/v1/compare?run=tiny-0&contrast=refusal", "/v1/jobs"]


client_at_once = partial(client_of, seconds_cached=-1.0)
"""A client of a service that reads the credentials again for each request."""


@pytest.fixture
def store(library, tmp_path):
    return copied(library, tmp_path, "tiny-0")


def test_on_loopback_without_tokens_every_call_is_allowed(store, ray):
    client = client_at_once(store, jobs_url="http://head:8265")
    assert all(client.get(path).status_code == 200 for path in READS)
    answer = client.post("/v1/jobs", json=SPEC)
    assert answer.status_code == 202
    assert answer.json()["yours"]
    assert client.get(f"/v1/jobs/{answer.json()['id']}/logs").status_code == 200


def test_outside_loopback_every_call_needs_a_token(store):
    client = client_at_once(store, tokenless=False)
    for path in READS:
        assert_problem(client.get(path), 401, "Bearer")


def test_after_the_first_token_every_call_needs_a_token(store, ray):
    client = client_at_once(store, jobs_url="http://head:8265")
    assert client.get("/v1/runs").status_code == 200
    token, record = create_credential(store, ["read", "submit"])
    calls = [*(("GET", path) for path in READS), ("POST", "/v1/jobs"), ("POST", "/v1/spec/check")]
    calls += [("GET", JOB), ("GET", f"{JOB}/logs"), ("DELETE", JOB)]
    for method, path in calls:
        for given in ({}, bearer("nobody"), bearer(token[:-1]), bearer(record.id), {"Authorization": f"Basic {token}"}):
            answer = client.request(method, path, headers=given, json=SPEC if method == "POST" else None)
            assert_problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert token not in answer.text
            assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/v1/runs", headers=bearer(token)).status_code == 200
    assert client.get("/v1/runs", headers={"Authorization": f"bearer {token}"}).status_code == 200
    for public in ("/healthz", "/readyz", "/", "/docs", "/openapi.json", "/v1/spec.schema.json"):
        assert client.get(public).status_code in (200, 404)


def test_an_expired_token_is_rejected_and_does_not_open_the_service(store):
    token, _ = create_credential(store, ["read"], days=0)
    client = client_at_once(store)
    assert_problem(client.get("/v1/runs", headers=bearer(token)), 401, "expired at")
    assert_problem(client.get("/v1/runs"), 401)


def test_a_revoked_token_is_rejected(store):
    token, record = create_credential(store, ["read"])
    other, _ = create_credential(store, ["read"])
    client = client_at_once(store)
    assert client.get("/v1/runs", headers=bearer(token)).status_code == 200
    revoke_credential(store, record.id)
    assert_problem(client.get("/v1/runs", headers=bearer(token)), 401)
    assert client.get("/v1/runs", headers=bearer(other)).status_code == 200


def test_revoking_the_last_token_does_not_open_the_service(store):
    token, record = create_credential(store, ["read"])
    revoke_credential(store, record.id)
    client = client_at_once(store)
    assert_problem(client.get("/v1/runs"), 401)
    assert_problem(client.get("/v1/runs", headers=bearer(token)), 401)


def test_a_revoked_token_is_valid_for_seconds_at_most(store):
    now = 100.0
    token, record = create_credential(store, ["read"])
    create_credential(store, ["read"])
    client = client_of(store)
    client.app.state.access.clock = lambda: now
    assert client.get("/v1/runs", headers=bearer(token)).status_code == 200
    revoke_credential(store, record.id)
    now += 2.1
    assert client.get("/v1/runs", headers=bearer(token)).status_code == 401


def test_a_token_allows_only_its_scopes(store, ray):
    read, _ = create_credential(store, ["read"])
    submit, _ = create_credential(store, ["submit"])
    client = client_at_once(store, jobs_url="http://head:8265")
    for path in READS:
        assert_problem(
            client.get(path, headers=bearer(submit)), 403, "the token has the scope submit", "needs the scope read"
        )
    calls = (("POST", "/v1/jobs"), ("GET", f"{JOB}/logs"), ("DELETE", JOB))
    for method, path in calls:
        content = SPEC if method == "POST" else None
        answer = client.request(method, path, headers=bearer(read), json=content)
        assert_problem(answer, 403, "the token has the scope read", "needs the scope submit")
    assert ray.jobs == {}
    assert client.post("/v1/jobs", headers=bearer(submit), json=SPEC).status_code == 202


def test_only_the_owner_reads_logs_and_stops_the_job(store, ray):
    mine, own = create_credential(store, ["read", "submit"])
    yours, _ = create_credential(store, ["read", "submit"])
    client = client_at_once(store, jobs_url="http://head:8265")
    job = client.post("/v1/jobs", headers=bearer(mine), json=SPEC).json()
    assert job["yours"]
    path = f"/v1/jobs/{job['id']}"
    assert not client.get(path, headers=bearer(yours)).json()["yours"]
    for method, url in (("GET", f"{path}/logs"), ("DELETE", path)):
        assert_problem(client.request(method, url, headers=bearer(yours)), 403, "another token submitted")
    again = client.post("/v1/jobs", headers=bearer(yours), json=SPEC)
    assert (again.status_code, again.json()["yours"]) == (202, False)
    assert_problem(client.get(f"{path}/logs", headers=bearer(yours)), 403)
    assert read_jobs(store, Cache(0))[0].attempt.owner == own.id
    answer = client.get(f"{path}/logs", headers=bearer(mine))
    assert (answer.text, answer.headers["content-type"]) == (ray.log, "text/plain; charset=utf-8")
    assert client.delete(path, headers=bearer(mine)).json()["state"] == "stopped"


def test_an_unknown_job_returns_404_rather_than_403(store, ray):
    token, _ = create_credential(store, ["submit"])
    client = client_at_once(store, jobs_url="http://head:8265")
    for method, path in (("GET", f"{JOB}/logs"), ("DELETE", JOB)):
        assert_problem(client.request(method, path, headers=bearer(token)), 404, "000000000000")


def test_a_reader_does_not_see_the_log_of_a_failed_job(store, ray):
    mine, _ = create_credential(store, ["read", "submit"])
    reader, _ = create_credential(store, ["read"])
    client = client_at_once(store, jobs_url="http://head:8265")
    job = client.post("/v1/jobs", headers=bearer(mine), json=SPEC).json()
    message = "Job entrypoint command failed with exit code 137, last available logs (truncated to 20,000 chars):"
    ray.set_state(ray.submitted[0], "FAILED", f"{message}\nLINE-OF-LOG")
    for path in ("/v1/jobs", f"/v1/jobs/{job['id']}"):
        answer = client.get(path, headers=bearer(reader))
        assert "shown only to the token that submitted the job" in answer.text
        assert "LINE-OF-LOG" not in answer.text
        mine_too = client.get(path, headers=bearer(mine)).text
        assert "exit code 137" in mine_too
        assert "LINE-OF-LOG" not in mine_too


def test_metrics_need_a_token_except_on_loopback(store):
    token, _ = create_credential(store, ["read"])
    submit, _ = create_credential(store, ["submit"])
    remote, local = client_at_once(store, client=("10.0.0.7", 4)), client_at_once(store, client=("127.0.0.1", 4))
    assert_problem(remote.get("/metrics"), 401)
    assert_problem(remote.get("/metrics", headers=bearer(submit)), 403)
    assert remote.get("/metrics", headers=bearer(token)).status_code == 200
    assert local.get("/metrics").status_code == 200
    assert client_at_once(store, client=("::1", 4)).get("/metrics", headers={"Host": "[::1]:80"}).status_code == 200
    # A proxy on this machine forwards requests of other machines under the deployment's host name.
    proxied = client_at_once(store, client=("127.0.0.1", 4), hosts=["theodolite.example"])
    assert_problem(proxied.get("/metrics", headers={"Host": "theodolite.example"}), 401)


def test_tokens_and_prompts_are_never_logged(store, ray, caplog, capsys):
    token, _ = create_credential(store, ["read", "submit"])
    client = client_at_once(store, jobs_url="http://head:8265", ray_token="RAY-SECRET")
    spec = {**SPEC, "words": {"sentences": ["SENTENCE-SECRET"]}, "analyses": None}
    spec["prompts"] = {**SPEC["prompts"], "harmful": {**SPEC["prompts"]["harmful"], "system": "SYSTEM-SECRET"}}
    with caplog.at_level(logging.DEBUG):
        assert client.post("/v1/jobs", headers=bearer(token), json=spec).status_code == 202
        client.get("/v1/jobs", headers=bearer(token))
        client.get("/v1/runs/tiny-0/curves", headers=bearer(token))
        client.get("/v1/runs", headers=bearer(token + "x"))
        client.post("/v1/jobs", headers=bearer(token), json={**spec, "extra": 1})
    printed = capsys.readouterr()
    for secret in (token, "SENTENCE-SECRET", "SYSTEM-SECRET", "RAY-SECRET"):
        assert secret not in caplog.text
        assert secret not in printed.out + printed.err
        assert not any(secret in str(request) for request in ray.requests)
    (job,) = ray.jobs.values()
    assert not any(secret in str(job) for secret in ("SENTENCE-SECRET", "SYSTEM-SECRET", "RAY-SECRET", token))
    for file in Path(store).glob("jobs/*/*/*.json"):
        assert not any(secret in file.read_text() for secret in (token, "SENTENCE-SECRET", "SYSTEM-SECRET"))


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>"])
def test_markup_in_a_name_is_returned_as_json_text(store, ray, text):
    client = client_at_once(store, jobs_url="http://head:8265")
    spec = {**SPEC, "name": text, "words": {"sentences": [text]}}
    submitted = client.post("/v1/jobs", json=spec)
    answers = [submitted, client.get("/v1/jobs"), client.post("/v1/spec/check", json=spec)]
    answers += [client.get("/v1/runs", params={"model": text}), client.get(f"/v1/runs/{text}")]
    answers += [client.post("/v1/spec/check", json={**spec, text: 1}), client.get("/v1/runs", params={"cursor": text})]
    for answer in answers:
        assert answer.headers["content-type"] in ("application/json", "application/problem+json")
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert submitted.json()["name"] == text


def test_a_report_escapes_the_name_of_its_spec(tmp_path):
    run = store_run(tmp_path, draw_sets(), contrasts={"refusal": REFUSAL})
    named = run.record.model_copy(
        update={
            "spec": run.record.spec.model_copy(update={"name": "</script><b>NAME"}),
            "model": run.record.model.model_copy(update={"name": "</script><i>MODEL\u2028"}),
        }
    )
    run = type(run)(run.store, named)
    analyse(run, {"refusal": REFUSAL}, None, lambda *_: None)
    write_report(run)
    page = (tmp_path / "runs" / "tiny-0" / "report.html").read_text()
    assert "</script><b>NAME" not in page
    assert "</script><i>MODEL" not in page
    assert "MODEL" in page


def test_concurrent_requests_read_the_credentials_once(monkeypatch):
    reads = []

    def slowly(_store):
        time.sleep(0.05)
        reads.append(1)
        return []

    monkeypatch.setattr("theodolite.api.access.list_credentials", slowly)
    monkeypatch.setattr("theodolite.api.access.had_credentials", lambda _store: False)
    access = Access("nowhere", open_without_tokens=True)

    async def all_at_once():
        return await asyncio.gather(*(access.caller({}) for _ in range(50)))

    assert {caller.id for caller in asyncio.run(all_at_once())} == {"local"}
    assert len(reads) == 1


def test_a_slow_read_does_not_extend_the_validity_of_a_revoked_token(tmp_path, monkeypatch):
    token, record = create_credential(str(tmp_path), ["read"])
    access = Access(str(tmp_path), open_without_tokens=False, seconds_cached=0.5)

    def slowly(store):
        credentials = list_credentials(store)
        revoke_credential(store, record.id)  # right after this read
        time.sleep(0.6)
        return credentials

    async def ask_twice():
        with monkeypatch.context() as slow:
            slow.setattr("theodolite.api.access.list_credentials", slowly)
            await access.caller({"authorization": f"Bearer {token}"})
        await access.caller({"authorization": f"Bearer {token}"})

    with pytest.raises(Problem, match="unknown to this service"):
        asyncio.run(ask_twice())


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-IP"])
def test_a_proxy_does_not_open_a_service_without_tokens(store, header):
    client = client_of(store)
    assert client.get("/v1/runs").status_code == 200
    assert_problem(client.get("/v1/runs", headers={header: "203.0.113.7"}), 403, "came through a proxy", "token create")
    token, _ = create_credential(store, ["read"])
    client = client_at_once(store)
    assert client.get("/v1/runs", headers={header: "203.0.113.7", **bearer(token)}).status_code == 200
