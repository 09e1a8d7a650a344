"""A run whose bytes changed says so and hides no other; nothing that lies in a store makes the service fail."""

import json
import random
import shutil
from pathlib import Path

import pytest
from support.serving import assert_problem, client_of, copied

from theodolite.api.encoding import PARQUET

RUN = "/v1/runs/tiny-0"
ASKED = (
    "",
    "/curves?statistic=cosine_of_means",
    "/directions/refusal?site=resid_pre&layer=0",
    "/gram?statistic=mean_cosine",
    "/tables/growth?limit=3",
    "/sections",
    "/sections/curves",
    "/figures/curves.refusal.-1",
)


@pytest.fixture
def damaged(library, tmp_path):
    """Two runs, the first to be broken before the service first reads it; a fresh client, and the run's folder."""
    return client_of(copied(library, tmp_path, "tiny-0", "tiny-1")), tmp_path / "runs" / "tiny-0"


def chunks(run, group, variable):
    return sorted(path for path in (run / "results.zarr" / group / variable / "c").rglob("*") if path.is_file())


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def assert_the_other_run_is_fine(client):
    assert "tiny-1" in [item["run_id"] for item in client.get("/v1/runs").json()["items"]]
    answer = client.get("/v1/runs/tiny-1/curves", params={"statistic": "cosine_of_means"})
    assert answer.status_code == 200


def assert_listed_as_damaged(client):
    lines = {item["run_id"]: item for item in client.get("/v1/runs?incomplete=true").json()["items"]}
    assert lines["tiny-0"]["state"] == "damaged"
    assert lines["tiny-0"]["reason"]
    assert "tiny-0" not in [item["run_id"] for item in client.get("/v1/runs").json()["items"]]


@pytest.mark.parametrize("place", [0, -1, 20])
def test_a_flipped_byte_of_a_result_is_said_and_the_rest_answered(damaged, place):
    client, run = damaged
    (path, *_) = chunks(run, "gram", "mean_cosine")
    flip(path, place)
    answer = client.get(f"{RUN}/gram?statistic=mean_cosine")
    assert_problem(answer, 409, "tiny-0", "results.zarr/gram/mean_cosine", "theodolite analyse tiny-0")
    assert_problem(client.get(f"{RUN}/figures/gram.shape"), 409, "gram")
    assert client.get(f"{RUN}/curves?statistic=cosine_of_means").status_code == 200
    assert_the_other_run_is_fine(client)


def test_a_chunk_that_is_cut_short_or_gone_is_said_and_not_answered_as_unknown_numbers(damaged):
    client, run = damaged
    (path, *_) = chunks(run, "curves", "cosine_of_means")
    path.write_bytes(path.read_bytes()[:5])
    assert_problem(client.get(f"{RUN}/curves"), 409, "curves/cosine_of_means", "theodolite analyse tiny-0")
    path.unlink()
    assert_problem(client.get(f"{RUN}/curves"), 409, "curves/cosine_of_means", "is missing")
    assert_the_other_run_is_fine(client)


def test_metadata_that_changed_is_said(damaged):
    client, run = damaged
    file = run / "results.zarr" / "curves" / "zarr.json"
    file.write_text(file.read_text().replace('"contrasts"', '"Xontrasts"'))
    assert_problem(client.get(f"{RUN}/curves"), 409, "curves/zarr.json")
    assert_listed_as_damaged(client)
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'"x"', b"{}", b"\xff\xfe", b'{"format": 1}'])
def test_a_run_record_that_cannot_be_read_is_said_and_listed(damaged, content):
    client, run = damaged
    (run / "run.json").write_bytes(content)
    for path in ASKED:
        assert_problem(client.get(f"{RUN}{path}"), 409, "tiny-0: run.json")
    assert_listed_as_damaged(client)
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize(
    "version",
    [2, "x", None, [], {}],
)
def test_a_run_of_another_format_is_said_and_hides_no_other(damaged, version):
    client, run = damaged
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "format": version}))
    assert_problem(client.get(f"{RUN}/curves"), 409, "tiny-0")
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize("name", ["tiny-1", "../../outside"])
def test_a_record_that_names_another_place_is_damaged(library, tmp_path, name):
    """A copied folder or a flipped byte must not answer with the numbers of another run, or from outside the store."""
    client = client_of(copied(library, tmp_path / "store", "tiny-0", "tiny-1"))
    run = tmp_path / "store" / "runs" / "tiny-0"
    shutil.copytree(run, tmp_path / "outside")
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "run_id": name}))
    assert_problem(client.get(f"{RUN}/curves"), 409, "tiny-0")


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"{}", b"\xff", b'{"groups": [], "checksums": 1}'])
def test_a_complete_that_cannot_be_read_is_said(damaged, content):
    client, run = damaged
    (run / "COMPLETE").write_bytes(content)
    for path in ASKED:
        assert_problem(
            client.get(f"{RUN}{path}"), 409, "tiny-0: COMPLETE cannot be read", "run `theodolite analyse tiny-0`"
        )
    assert_listed_as_damaged(client)
    assert_the_other_run_is_fine(client)


def rewrite_complete(run, **changes):
    content = json.loads((run / "COMPLETE").read_text())
    (run / "COMPLETE").write_text(json.dumps({**content, **changes}))
    return content


def test_a_group_that_this_version_does_not_know_is_left_alone(damaged):
    client, run = damaged
    groups = json.loads((run / "COMPLETE").read_text())["groups"]
    rewrite_complete(run, groups={**groups, "of-tomorrow": "0" * 64})
    assert client.get(RUN).status_code == 200


def test_a_group_whose_digest_is_not_the_stored_one_is_not_answered(damaged):
    client, run = damaged
    groups = json.loads((run / "COMPLETE").read_text())["groups"]
    rewrite_complete(run, groups={**groups, "gram": "0" * 64})
    assert client.get(f"{RUN}/gram?statistic=mean_cosine").status_code in (409, 503)
    assert client.get(f"{RUN}/travel").status_code == 200


def test_a_run_without_complete_is_not_complete_any_more(damaged):
    client, run = damaged
    assert client.get(f"{RUN}/travel").status_code == 200
    (run / "COMPLETE").unlink()
    assert_problem(client.get(f"{RUN}/travel"), 409, "not complete")
    assert_the_other_run_is_fine(client)


@pytest.mark.parametrize("form", ["application/json", PARQUET])
def test_a_table_that_is_cut_short_or_gone_is_said(damaged, form):
    client, run = damaged
    file, given = run / "tables" / "growth.parquet", {"Accept": form}
    whole = file.read_bytes()
    for content in (whole[:100], whole[:-10], b"", b"PAR1", bytes(200)):
        file.write_bytes(content)
        assert_problem(client.get(f"{RUN}/tables/growth", headers=given), 409, "tables/growth.parquet")
    file.unlink()
    assert_problem(client.get(f"{RUN}/tables/growth", headers=given), 409, "tables/growth.parquet: is missing")
    assert client.get(f"{RUN}/tables/curves", headers=given).status_code == 200


def test_a_commit_record_that_cannot_be_read_is_said_of_the_run_alone(damaged):
    client, run = damaged
    (run / "shards" / "harmful" / "00001.json").write_text("{")
    assert_problem(client.get(RUN), 409, "shards/harmful/00001.json")
    assert client.get(f"{RUN}/curves").status_code == 200
    assert_the_other_run_is_fine(client)


def test_a_record_whose_sets_are_not_those_of_its_spec_is_damaged(damaged):
    client, run = damaged
    record = json.loads((run / "run.json").read_text())
    record["sets"]["harmdul"] = record["sets"].pop("harmful")
    (run / "run.json").write_text(json.dumps(record))
    assert_problem(client.get(RUN), 409, "tiny-0")


@pytest.mark.parametrize(("name", "flips"), [("run.json", 30), ("COMPLETE", 20), ("results.zarr/zarr.json", 30)])
def test_no_flipped_byte_makes_the_service_fail(library, tmp_path, name, flips):
    """The listing and a curve; what else of a run's own page fails is above."""
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
        ("results.zarr/curves/cosine_of_means/c/0/0/0/0", "results.zarr/cuRves/cosine_of_means/c/0/0/0/0"),
        ("results.zarr/curves/cosine_of_means/c/0/0/0/0", "results.zarr/curves/cosine_of_means/c/0/0?0/0"),
        ("results.zarr/curves/site/c/0", "results.zarr/cuRves/site/c/0"),
        ("results.zarr/curves/zarr.json", "resultS.zarr/curves/zarr.json"),
    ],
)
def test_a_complete_that_lacks_an_object_of_its_group_is_damaged(damaged, key, changed):
    """One flipped bit in COMPLETE: numbers must not turn into unknown ones."""
    client, run = damaged
    content = (run / "COMPLETE").read_text()
    assert f'"{key}"' in content
    (run / "COMPLETE").write_text(content.replace(f'"{key}"', f'"{changed}"'))
    assert_problem(client.get(f"{RUN}/curves?statistic=cosine_of_means"), 409, "tiny-0")
