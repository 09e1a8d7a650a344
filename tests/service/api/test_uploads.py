"""Uploads over HTTP: their quota, their list, their deletion, and their expiry."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from support.sealed import reseal
from support.serving import SPEC, assert_problem, bearer, client_of
from support.submitted_jobs import URL

from theodolite.api import expiry, upload_quota
from theodolite.api.credentials import create_credential
from theodolite.errors import StoreError
from theodolite.settings import Settings
from theodolite.store.cache import Cache
from theodolite.store.uploads import is_uploaded
from theodolite.submission.surveys import remove_expired_uploads

UPLOADS = "/v1/uploads"
KIND = {"Content-Type": "application/octet-stream"}


def send(client, content, headers=(), kind="txt"):
    return client.post(UPLOADS, params={"type": kind}, content=content, headers={**KIND, **dict(headers)})


def uploaded(client, content, headers=()):
    answer = send(client, content, headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["source"]


def listed(client, headers=()):
    return [one["source"] for one in client.get(UPLOADS, headers=dict(headers)).json()["items"]]


def with_prompts(source, **more):
    return {**SPEC, "prompts": {**SPEC["prompts"], "mine": {"source": source, **more}}}


@pytest.fixture
def tokens(tmp_path):
    """The headers of two tokens that may upload."""
    return [bearer(create_credential(str(tmp_path), ["read", "submit"])[0]) for _ in range(2)]


@pytest.fixture
def client(tmp_path, ray):
    return client_of(tmp_path, jobs_url=URL)


def age(tmp_path, owner, source, days=91):
    name = source.removeprefix("upload:")
    when = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    reseal(tmp_path / "upload-owners" / owner / f"{name}.json", uploaded=when)


def test_a_caller_sees_and_deletes_only_its_own_uploads(client, tmp_path, tokens):
    mine, yours = tokens
    first, second = uploaded(client, b"one", mine), uploaded(client, b"three", yours)
    assert uploaded(client, b"one", yours) == first
    assert (listed(client, mine), set(listed(client, yours))) == ([first], {first, second})
    path = f"{UPLOADS}/{second.removeprefix('upload:')}"
    assert_problem(client.delete(path, headers=mine), 404, "this token has no upload", f"GET {UPLOADS} lists")
    path = f"{UPLOADS}/{first.removeprefix('upload:')}"
    assert client.delete(path, headers=mine).status_code == 204
    assert listed(client, mine) == []
    assert client.post("/v1/spec/check", json=with_prompts(first), headers=mine).status_code == 200
    assert client.delete(path, headers=yours).status_code == 204
    assert_problem(client.post("/v1/spec/check", json=with_prompts(first), headers=mine), 422, "has no upload")
    assert_problem(client.delete(path, headers=yours), 404)


def test_the_list_has_sizes_and_times_in_pages(client, tmp_path):
    sources = [uploaded(client, f"{number}".encode() * 3) for number in range(3)]
    (item, *_) = client.get(UPLOADS).json()["items"]
    assert item["bytes"] == 3
    assert datetime.fromisoformat(item["expires"]) - datetime.fromisoformat(item["uploaded"]) == timedelta(days=90)
    page = client.get(UPLOADS, params={"limit": 2}).json()
    rest = client.get(UPLOADS, params={"limit": 2, "cursor": page["next"]}).json()
    assert sorted(one["source"] for one in [*page["items"], *rest["items"]]) == sorted(sources)
    assert rest["next"] is None


def test_a_damaged_record_is_listed_without_its_times(client, tmp_path):
    source = uploaded(client, b"one")
    (record,) = (tmp_path / "upload-owners" / "local").iterdir()
    record.write_bytes(b"{}")
    assert client.get(UPLOADS).json()["items"] == [{"source": source, "bytes": 3, "uploaded": None, "expires": None}]
    assert client.delete(f"{UPLOADS}/{source.removeprefix('upload:')}").status_code == 204


def test_the_bytes_of_a_caller_and_of_the_store_are_limited(tmp_path, tokens, monkeypatch):
    monkeypatch.setattr(upload_quota, "BODY_BYTES", 0)
    monkeypatch.setattr(upload_quota, "LEAST", 10)
    client = client_of(tmp_path, upload_bytes=100)
    mine, yours = tokens
    for number in range(16):
        uploaded(client, bytes([number]) * 100, mine)
    refused = send(client, b"x", mine)
    assert_problem(refused, 413, "this caller has uploads of 1600 bytes, this one counts 10, and 1600 are allowed")
    assert_problem(refused, 413, "delete uploads (DELETE /v1/uploads/NAME), or raise THEODOLITE_UPLOAD_BYTES")
    assert uploaded(client, bytes([3]) * 100, mine)  # it has this one already
    assert_problem(send(client, bytes([3]) * 101, yours), 413, "longer than the limit of 100 bytes")
    client.delete(f"{UPLOADS}/{listed(client, mine)[0].removeprefix('upload:')}", headers=mine)
    uploaded(client, b"x" * 100, mine)
    monkeypatch.setattr(upload_quota, "IN_STORE", 17)
    uploaded(client, b"y" * 90, yours)
    uploaded(client, b"z" * 9, yours)  # counts 10
    assert_problem(send(client, b"w", yours), 413, "the store has uploads of 1700 bytes, this one counts 10")
    assert uploaded(client, b"x" * 100, yours)  # the store has this one already


def test_prompts_in_a_spec_and_specs_of_estimates_count_too(client, tmp_path, monkeypatch):
    monkeypatch.setattr(upload_quota, "OF_CALLER", 0)
    spec = with_prompts("inline", texts=["One.", "Two."])
    for path, sent in (("/v1/jobs", spec), ("/v1/spec/estimate", spec), ("/v1/spec/estimate", SPEC)):
        assert_problem(client.post(path, json=sent), 413, "this caller has uploads of 0 bytes")
    assert client.post("/v1/jobs", json=SPEC).status_code == 202
    assert not (tmp_path / "uploads").exists()


def test_a_refused_survey_job_stores_no_prompts(tmp_path, ray):
    client = client_of(tmp_path, jobs_url=URL, jobs_per_token=1)
    assert client.post("/v1/jobs", json=SPEC).status_code == 202
    assert_problem(client.post("/v1/jobs", json=with_prompts("inline", texts=["One."])), 429, "have not ended")
    assert not (tmp_path / "uploads").exists()


def test_prompts_in_a_spec_are_an_upload_of_its_caller(client, tmp_path, tokens):
    mine, yours = tokens
    assert client.post("/v1/jobs", json=with_prompts("inline", texts=["One."]), headers=mine).status_code == 202
    (source,) = listed(client, mine)
    assert json.loads((tmp_path / "uploads" / source.removeprefix("upload:")).read_text()) == ["One."]
    assert listed(client, yours) == []


def test_an_upload_that_a_survey_job_reads_is_not_deleted_before_the_job_has_ended(client, ray, tmp_path):
    source = uploaded(client, b"one\n")
    job = client.post("/v1/jobs", json=with_prompts(source)).json()
    path = f"{UPLOADS}/{source.removeprefix('upload:')}"
    assert_problem(client.delete(path), 409, f"survey job {job['id'][:12]}… reads upload", "stop it, or wait")
    ray.set_state(ray.submitted[0], "FAILED", "why")
    assert client.delete(path).status_code == 204


def test_an_upload_of_a_survey_job_is_kept_while_the_cluster_does_not_respond(client, ray, tmp_path):
    source = uploaded(client, b"one\n")
    client.post("/v1/jobs", json=with_prompts(source))
    ray.failure = httpx.ConnectError("refused")
    assert_problem(client.delete(f"{UPLOADS}/{source.removeprefix('upload:')}"), 503, "cannot be reached")
    assert listed(client) == [source]


def test_uploads_expire_unless_a_survey_job_that_has_not_ended_reads_them(client, ray, tmp_path):
    settings = Settings(store=str(tmp_path), jobs_url=URL)
    old, used, new = (uploaded(client, content) for content in (b"one\n", b"two\n", b"three\n"))
    client.post("/v1/jobs", json=with_prompts(used))
    age(tmp_path, "local", old)
    age(tmp_path, "local", used)
    age(tmp_path, "local", new, 89)
    remove_expired_uploads(settings, Cache(0))
    assert set(listed(client)) == {used, new}
    assert not is_uploaded(str(tmp_path), old.removeprefix("upload:"))
    ray.set_state(ray.submitted[0], "SUCCEEDED")
    remove_expired_uploads(settings, Cache(0))
    assert listed(client) == [new]


def test_an_upload_of_another_owner_does_not_expire_with_it(client, tmp_path, tokens):
    source = uploaded(client, b"one\n", tokens[0])
    assert uploaded(client, b"one\n", tokens[1]) == source
    (first, _) = sorted(path.name for path in (tmp_path / "upload-owners").iterdir())
    age(tmp_path, first, source)
    remove_expired_uploads(Settings(store=str(tmp_path)), Cache(0))
    assert is_uploaded(str(tmp_path), source.removeprefix("upload:"))
    assert sorted([*listed(client, tokens[0]), *listed(client, tokens[1])]) == [source]


def test_a_service_removes_expired_uploads_again_and_again(monkeypatch, tmp_path, caplog):
    seen = []

    def remove(settings, _cache):
        seen.append(settings.store)
        if len(seen) == 1:
            raise StoreError("the store does not respond")
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(expiry, "remove_expired_uploads", remove)
    monkeypatch.setattr(expiry, "SECONDS", 0)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(expiry.remove_expired(Settings(store=str(tmp_path)), Cache(0)))
    assert seen == [str(tmp_path)] * 3
    assert "expired uploads are not removed: StoreError: the store does not respond" in caplog.text


def test_a_running_service_removes_expired_uploads(client, tmp_path):
    source = uploaded(client, b"one\n")
    age(tmp_path, "local", source)
    with client:  # as a server starts
        for _ in range(200):
            if not is_uploaded(str(tmp_path), source.removeprefix("upload:")):
                break
            client.get("/healthz")
    assert listed(client) == []
