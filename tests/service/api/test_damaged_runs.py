"""Check that a damaged run returns 409, that other runs stay available, and that no damage causes a 500."""

import json
import random
import shutil
from pathlib import Path

import pytest
from support.nightly import at_night, one_in
from support.sealed import reseal
from support.serving import assert_problem, client_of, copied

from theodolite.api.encoding import PARQUET
from theodolite.store.layout import FORMAT

RUN = "/v1/runs/tiny-0"
TRAVEL = f"{RUN}/curves?statistic=step_norm@sublayer=mlp,summary=mean"
REQUESTED = (
    "",
    "/curves?statistic=cosine_of_means",
    "/directions/refusal?site=resid_pre&layer=0",
    "/curves?statistic=mean_cosine",
    "/tables/growth?limit=3",
    "/sections",
    "/sections/curves",
    "/figures/curves.refusal.-1",
)


@pytest.fixture
def damaged(library, tmp_path):
    """A new client of a store with two runs, and the folder of the first run, which the test damages."""
    return client_of(copied(library, tmp_path, "tiny-0", "tiny-1")), tmp_path / "runs" / "tiny-0"


def chunks(run, group, variable):
    return sorted(path for path in (run / "results.zarr" / group / variable / "c").rglob("*") if path.is_file())


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def assert_the_other_run_is_fine(client):
    assert "tiny-1" in [item["run_id"] for item in client.get("/v1/runs").json()["items"]]
    answer = client.get("/v1/runs/tiny-1/curves", params={"statistic": "cosine_of_means"})
    assert answer.status_code == 200


def assert_listed_as_damaged(client):
    listed = {item["run_id"]: item for item in client.get("/v1/runs?incomplete=true").json()["items"]}
    assert listed["tiny-0"]["state"] == "damaged"
    assert listed["tiny-0"]["reason"]
    assert "tiny-0" not in [item["run_id"] for item in client.get("/v1/runs").json()["items"]]


@pytest.mark.parametrize("offset", [0, -1, 20])
def test_a_flipped_byte_returns_409_for_its_group_only(damaged, offset):
    client, run = damaged
    (path, *_) = chunks(run, "gram", "mean_cosine")
    flip(path, offset)
    answer = client.get(f"{RUN}/curves?statistic=mean_cosine")
    assert_problem(answer, 409, "tiny-0", "results.zarr/gram/mean_cosine", "theodolite run analyse tiny-0")
    assert_problem(client.get(f"{RUN}/figures/gram.shape"), 409, "gram")
    assert client.get(f"{RUN}/curves?statistic=cosine_of_means").status_code == 200
    assert_the_other_run_is_fine(client)


def test_a_truncated_or_missing_chunk_returns_409_and_not_nan(damaged):
    client, run = damaged
    (path, *_) = chunks(run, "curves", "cosine_of_means")
    path.write_bytes(path.read_bytes()[:5])
    assert_problem(client.get(f"{RUN}/curves"), 409, "curves/cosine_of_means", "theodolite run analyse tiny-0")
    path.unlink()
    assert_problem(client.get(f"{RUN}/curves"), 409, "curves/cosine_of_means", "is missing")
    assert_the_other_run_is_fine(client)


def test_changed_metadata_returns_409(damaged):
    client, run = damaged
    file = run / "results.zarr" / "curves" / "zarr.json"
    file.write_text(file.read_text().replace('"contrasts"', '"Xontrasts"'))
    assert_problem(client.get(f"{RUN}/curves"), 409, "curves/zarr.json")
    assert client.get(RUN).json()["contrasts"] == ["refusal", "subject"]  # from the consolidated copy
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize(
    "content", one_in(2, [b"", b"null", b"{", b"[]", b"{}", b'"x"', b"\xff\xfe", b'{"format": 1}'])
)
def test_an_unreadable_run_record_returns_409_and_is_listed_as_damaged(damaged, content):
    client, run = damaged
    (run / "run.json").write_bytes(content)
    for path in REQUESTED:
        assert_problem(client.get(f"{RUN}{path}"), 409, "tiny-0: run.json")
    assert_listed_as_damaged(client)
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize(
    "version",
    [FORMAT + 1, "x", None, [], {}],
)
def test_a_run_of_another_format_returns_409_and_other_runs_are_listed(damaged, version):
    client, run = damaged
    reseal(run / "run.json", format=version)
    assert_problem(client.get(f"{RUN}/curves"), 409, "tiny-0")
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize("name", ["tiny-1", "../../outside"])
def test_a_record_with_another_run_id_is_damaged(library, tmp_path, name):
    """A copied folder or a flipped byte must not return numbers of another run, or data outside the store."""
    client = client_of(copied(library, tmp_path / "store", "tiny-0", "tiny-1"))
    run = tmp_path / "store" / "runs" / "tiny-0"
    shutil.copytree(run, tmp_path / "outside")
    reseal(run / "run.json", run_id=name)
    assert_problem(client.get(f"{RUN}/curves"), 409, "tiny-0")


@pytest.mark.parametrize(
    "content", one_in(2, [b"", b"null", b"{", b"[]", b"{}", b"\xff", b'{"groups": [], "checksums": 1}'])
)
def test_an_unreadable_complete_returns_409(damaged, content):
    client, run = damaged
    (run / "COMPLETE").write_bytes(content)
    for path in REQUESTED:
        assert_problem(client.get(f"{RUN}{path}"), 409, "tiny-0: COMPLETE ", "`theodolite run verify tiny-0 --repair`")
    assert_listed_as_damaged(client)
    assert_the_other_run_is_fine(client)


def test_a_group_of_a_newer_version_is_ignored(damaged):
    client, run = damaged
    groups = json.loads((run / "COMPLETE").read_text())["groups"]
    reseal(run / "COMPLETE", groups={**groups, "of-tomorrow": "0" * 64})
    assert client.get(RUN).status_code == 200


def test_a_group_with_another_digest_than_complete_is_rejected(damaged):
    client, run = damaged
    groups = json.loads((run / "COMPLETE").read_text())["groups"]
    reseal(run / "COMPLETE", groups={**groups, "gram": "0" * 64})
    assert client.get(f"{RUN}/curves?statistic=mean_cosine").status_code in (409, 503)
    assert client.get(TRAVEL).status_code == 200


def test_a_run_whose_complete_is_removed_becomes_incomplete(damaged):
    client, run = damaged
    assert client.get(TRAVEL).status_code == 200
    (run / "COMPLETE").unlink()
    assert_problem(client.get(TRAVEL), 409, "not complete")
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize("form", ["application/json", PARQUET])
def test_a_truncated_or_missing_table_returns_409(damaged, form):
    client, run = damaged
    file, given = run / "tables" / "growth.parquet", {"Accept": form}
    whole = file.read_bytes()
    for content in (whole[:100], whole[:-10], b"", b"PAR1", bytes(200)):
        file.write_bytes(content)
        assert_problem(client.get(f"{RUN}/tables/growth", headers=given), 409, "tables/growth.parquet")
    file.unlink()
    assert_problem(client.get(f"{RUN}/tables/growth", headers=given), 409, "tables/growth.parquet: is missing")
    assert client.get(f"{RUN}/tables/curves", headers=given).status_code == 200


def test_an_unreadable_commit_record_affects_only_the_description_of_its_run(damaged):
    client, run = damaged
    (run / "shards" / "harmful" / "00001.json").write_text("{")
    assert_problem(client.get(RUN), 409, "shards/harmful/00001.json")
    assert client.get(f"{RUN}/curves").status_code == 200
    assert_the_other_run_is_fine(client)


def test_a_record_with_other_sets_than_its_spec_is_damaged(damaged):
    client, run = damaged
    record = json.loads((run / "run.json").read_text())
    record["sets"]["harmdul"] = record["sets"].pop("harmful")
    (run / "run.json").write_text(json.dumps(record))
    assert_problem(client.get(RUN), 409, "tiny-0")


@pytest.mark.parametrize(
    ("name", "flips"),
    [
        *((name, 8) for name in ("run.json", "COMPLETE", "results.zarr/zarr.json")),
        *at_night([("run.json", 30), ("COMPLETE", 20), ("results.zarr/zarr.json", 30)]),
    ],
)
def test_no_flipped_byte_makes_the_service_fail(library, tmp_path, name, flips):
    """Check the list of runs and a curve; the tests above check the other routes."""
    draw = random.Random(name)
    store = copied(library, tmp_path, "tiny-0")
    file = tmp_path / "runs" / "tiny-0" / name
    whole = file.read_bytes()
    for _ in range(flips):
        flip(file, draw.randrange(len(whole)), draw.randrange(8))
        client = client_of(store)
        for path in ("/v1/runs?incomplete=true", f"{RUN}/curves?statistic=auroc"):
            assert client.get(path).status_code != 500, (path, file.read_bytes())
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("results.zarr/curves/cosine_of_means/c/0/0/0/0/0", "results.zarr/cuRves/cosine_of_means/c/0/0/0/0/0"),
        ("results.zarr/curves/cosine_of_means/c/0/0/0/0/0", "results.zarr/curves/cosine_of_means/c/0/0?0/0/0"),
        ("results.zarr/curves/site/c/0", "results.zarr/cuRves/site/c/0"),
        ("results.zarr/curves/zarr.json", "resultS.zarr/curves/zarr.json"),
    ],
)
def test_a_complete_that_lacks_an_object_of_its_group_is_damaged(damaged, key, changed):
    """After one flipped bit in COMPLETE, numbers must not become missing values."""
    client, run = damaged
    content = (run / "COMPLETE").read_text()
    assert f'"{key}"' in content
    (run / "COMPLETE").write_text(content.replace(f'"{key}"', f'"{changed}"'))
    assert_problem(client.get(f"{RUN}/curves?statistic=cosine_of_means"), 409, "tiny-0")
