"""Check the stored objects over HTTP: those of the results and the capture, byte for byte, and nothing else."""

import hashlib
import json
from pathlib import Path

import pytest
from support.each import each
from support.sealed import reseal
from support.serving import assert_problem, bearer, client_of, copied

from theodolite.api.credentials import create_credential
from theodolite.store.objects import keys, open_location
from theodolite.store.removal import remove_run
from theodolite.store.runs import open_run

OBJECTS = "/v1/runs/tiny-0/objects"
SHARD = "activations.zarr/harmful/resid_pre/c/0/0/0/0"
CHUNK = "results.zarr/curves/cosine_of_means/c/0/0/0/0/0"


@pytest.fixture
def own(library, tmp_path):
    """A new client of a store with two runs, and the folder of the first run, which the test changes."""
    return client_of(copied(library, tmp_path, "tiny-0", "tiny-1")), tmp_path / "runs" / "tiny-0"


def test_exactly_the_objects_of_the_run_are_returned_byte_for_byte(client, library):
    folder = Path(library, "runs", "tiny-0")
    listed = json.loads((folder / "COMPLETE").read_text())["checksums"]
    returned = set()
    for key in {*listed, *keys(open_location(str(folder)))}:
        answer = client.get(f"{OBJECTS}/{key}")
        if answer.status_code == 200:
            returned.add(key)
            content = (folder / key).read_bytes()
            assert answer.content == content
            assert answer.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
            assert answer.headers["content-type"] == "application/octet-stream"
            assert answer.headers["content-disposition"].startswith("attachment")
            assert "content-encoding" not in answer.headers or answer.headers["content-encoding"] == "identity"
        else:
            assert_problem(answer, 404, key, "COMPLETE lists those that it has")
    stored = set(keys(open_location(str(folder))))
    arrays = {key for key in stored if key.startswith("activations.zarr/") and not key.endswith("zarr.json")}
    assert returned == listed.keys() | arrays | {"run.json", "COMPLETE"}
    assert arrays


@each("key", ["run.json", "COMPLETE", "tables/growth.parquet", CHUNK])
def test_an_unchanged_object_is_not_sent_again(client, key):
    etag = client.get(f"{OBJECTS}/{key}").headers["etag"]
    answer = client.get(f"{OBJECTS}/{key}", headers={"If-None-Match": etag})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert client.get(f"{OBJECTS}/{key}", headers={"If-None-Match": f'"{"0" * 64}"'}).status_code == 200


OUTSIDE = [
    "",
    "..%2f..%2fsecret.parquet",
    "%2e%2e/%2e%2e/secret.parquet",
    "tables/..%2f..%2f..%2fsecret.parquet",
    "tables/%2e%2e/%2e%2e/tiny-1/tables/growth.parquet",
    "..%2ftiny-1%2ftables%2fgrowth.parquet",
    "runs/tiny-1/tables/growth.parquet",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "//COMPLETE",
    "COMPLETE/",
    "%2e/COMPLETE",
    "tables//growth.parquet",
    "tables/growth.parquet%00",
    "tables/growth.parquet%0d%0aX-Evil:%201",
    "tables\\growth.parquet",
    "tables/unlisted.parquet",
    "TABLES/GROWTH.PARQUET",
    "prompts/others.parquet",
    "shards/harmful/00007.json",
    "activations.zarr/harmful/resid_pre/c/7/0/0/0",
    "activations.zarr/harmful/resid_pre/c/00/0/0/0",
    "activations.zarr/harmful/mlp_out/c/0/0/0/0",
    "activations.zarr/others/resid_pre/c/0/0/0/0",
    "other.zarr/harmful/resid_pre/c/0/0/0/0",
    "results.zarr",
    "results.zarr/curves",
    "labels/tiny-0/name.json",
    "%ff%fe",
    "%f0%9f%92%a9",
    "a" * 299,
    "a" * 3000,
    "*",
]


@each("key", OUTSIDE)
def test_no_key_that_complete_does_not_list_is_read(own, key):
    client, run = own
    for folder in (run, run.parent, run.parent.parent):
        (folder / "secret.parquet").write_text("SECRET-OF-THE-DISK")
    (run / "tables" / "unlisted.parquet").write_text("SECRET-OF-THE-DISK")
    answer = client.get(f"{OBJECTS}/{key}")
    assert answer.status_code in (404, 422), (key, answer.status_code)
    assert_problem(answer, answer.status_code)
    assert "SECRET-OF-THE-DISK" not in answer.text
    assert "x-evil" not in answer.headers


def test_a_complete_that_lists_an_object_outside_of_the_run_is_damaged(own):
    client, run = own
    (run.parent / "secret.parquet").write_text("SECRET-OF-THE-DISK")
    checksum = hashlib.sha256(b"SECRET-OF-THE-DISK").hexdigest()
    reseal(run / "COMPLETE", checksums={"tables/../../secret.parquet": checksum})
    assert_problem(client.get(f"{OBJECTS}/tables/..%2f..%2fsecret.parquet"), 409, "which is no object of the run")


def test_a_link_is_not_followed(own, tmp_path):
    client, run = own
    table = run / "tables" / "growth.parquet"
    (tmp_path / "outside").write_bytes(table.read_bytes())
    table.unlink()
    table.symlink_to(tmp_path / "outside")
    assert_problem(client.get(f"{OBJECTS}/tables/growth.parquet"), 503, "is a link")


CAPTURED = ["prompts/harmful.parquet", "prompts/harmful.tokens.parquet", "shards/harmful/00000.json", SHARD]


@each(
    "settings, reason",
    [
        ({"prompts_shown": False}, "THEODOLITE_PROMPTS_SHOWN"),
        ({"activation_bytes": 0}, "THEODOLITE_ACTIVATION_BYTES is 0"),
    ],
)
def test_a_service_may_send_nothing_of_the_capture(library, settings, reason):
    client = client_of(library, **settings)
    for key in CAPTURED:
        assert_problem(client.get(f"{OBJECTS}/{key}"), 403, reason)
    assert client.get(f"{OBJECTS}/tables/growth.parquet").status_code == 200


def test_a_part_of_activations_is_returned_up_to_the_limit(library, monkeypatch):
    client, content = client_of(library, activation_bytes=100), Path(library, "runs/tiny-0", SHARD).read_bytes()
    assert len(content) > 200

    def part(text):
        return client.get(f"{OBJECTS}/{SHARD}", headers={"Range": text})

    for first, last in ((0, 99), (7, 7), (len(content) - 3, len(content) + 50)):
        answer = part(f"bytes={first}-{last}")
        assert (answer.status_code, answer.content) == (206, content[first : last + 1])
        assert answer.headers["content-range"] == f"bytes {first}-{min(last, len(content) - 1)}/*"
    for text in ("bytes=0-100", "bytes=5-2", "bytes=-5", "lines=1-2"):
        assert_problem(part(text), 413, "at most 100 at once (THEODOLITE_ACTIVATION_BYTES)")
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.api.objects.committed_bytes", None)  # a shard above the limit is not read
        assert_problem(client.get(f"{OBJECTS}/{SHARD}"), 413, "at most 100 at once")
    assert part(f"bytes={len(content)}-{len(content) + 9}").status_code in (404, 503)
    assert client_of(library).get(f"{OBJECTS}/{SHARD}", headers={"Range": "bytes=5-2"}).content == content


def test_a_damaged_or_missing_object_returns_409(own):
    client, run = own
    whole = (run / CHUNK).read_bytes()
    (run / CHUNK).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert_problem(client.get(f"{OBJECTS}/{CHUNK}"), 409, CHUNK, "theodolite run analyse tiny-0")
    (run / CHUNK).unlink()
    assert_problem(client.get(f"{OBJECTS}/{CHUNK}"), 409, CHUNK, "is missing")
    assert client.get(f"{OBJECTS}/tables/growth.parquet").status_code == 200


def test_a_run_without_results_has_only_its_records(client, library):
    for key in ("run.json", "COMPLETE"):
        content = client.get(f"/v1/runs/captured-0/objects/{key}").content
        assert content == Path(library, "runs/captured-0", key).read_bytes()
    assert_problem(client.get("/v1/runs/captured-0/objects/tables/growth.parquet"), 404, "captured-0 has no object")


def test_an_unknown_or_removed_run_returns_404(own):
    client, run = own
    assert_problem(client.get("/v1/runs/nobody-0/objects/COMPLETE"), 404, "there is no run 'nobody-0'")
    assert client.get(f"{OBJECTS}/{CHUNK}").status_code == 200
    remove_run(open_run(str(run.parents[1]), "tiny-0"))
    for key in ("run.json", "COMPLETE", CHUNK):
        assert_problem(client.get(f"{OBJECTS}/{key}"), 404, "there is no run 'tiny-0'")


def test_objects_need_their_scope(library, tmp_path):
    store = copied(library, tmp_path, "tiny-0", with_activations=True)
    tokens = {scope: create_credential(store, [scope])[0] for scope in ("read", "submit", "admin", "activations")}
    both, _ = create_credential(store, ["read", "activations"])
    client = client_of(store, tokenless=False)
    assert_problem(client.get(f"{OBJECTS}/COMPLETE"), 401, "needs a token")
    for scope in ("submit", "admin", "activations"):
        answer = client.get(f"{OBJECTS}/COMPLETE", headers=bearer(tokens[scope]))
        assert_problem(answer, 403, f"the token has the scope {scope}, but this call needs the scope read")
    assert client.get(f"{OBJECTS}/COMPLETE", headers=bearer(tokens["read"])).status_code == 200
    for key in CAPTURED:
        answer = client.get(f"{OBJECTS}/{key}", headers=bearer(tokens["read"]))
        assert_problem(answer, 403, "the token has the scope read, but activations need the scope activations")
        assert client.get(f"{OBJECTS}/{key}", headers=bearer(both)).status_code == 200


@each("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_objects_cannot_be_written(client, method):
    answer = client.request(method, f"{OBJECTS}/COMPLETE", headers={"Content-Type": "application/json"}, content=b"{}")
    assert_problem(answer, 405, method, "GET, HEAD, OPTIONS")
