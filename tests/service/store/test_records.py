"""Commit records prove themselves: a changed record, and the record of another shard, are refused by name."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.finished_runs import finished_run
from support.stored import store_run

from theodolite.errors import RunDamagedError
from theodolite.query.verification import unexpected_objects, verify
from theodolite.store.checksums import seal
from theodolite.store.commits import read_commits
from theodolite.store.manifest import write_request
from theodolite.store.objects import put
from theodolite.store.runs import open_run

SHARDS = "runs/tiny-0/shards"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store with a captured run: two sets of three shards."""
    folder = tmp_path_factory.mktemp("whole")
    arrays = {name: {"resid_pre": np.ones((10, 1, 3, 8))} for name in ("harmful", "harmless")}
    store_run(folder, arrays, shard_prompts=4, quarantined={"harmful": {5: "not finite"}})
    return folder


@pytest.fixture
def store(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "store"))


def refusal(store, prompt_set="harmful"):
    with pytest.raises(RunDamagedError) as error:
        read_commits(open_run(str(store), "tiny-0"), prompt_set)
    assert "run `theodolite run verify tiny-0 --repair`" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def change(file, **fields):
    """Change fields of a record, and give it the right checksum."""
    record = {**json.loads(file.read_bytes()), **fields}
    record.pop("sha256")
    file.write_bytes(seal(record))


def test_two_records_that_were_swapped_are_refused(store):
    first, second = (store / SHARDS / f"harmful/{index:05d}.json" for index in (0, 1))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    assert "shards/harmful/00000.json is the record of shard harmful/00001 of tiny-0" in refusal(store)
    assert len([line for line in verify(open_run(str(store), "tiny-0")) if "is the record of" in line]) == 2


def test_a_record_of_another_set_is_refused(store):
    shutil.copy(store / SHARDS / "harmless/00002.json", store / SHARDS / "harmful/00002.json")
    assert "shards/harmful/00002.json is the record of shard harmless/00002" in refusal(store)


@each(
    "fields, problem",
    [
        ({"run_id": "tiny-1"}, "is the record of shard harmful/00001 of tiny-1"),
        ({"start": 3}, "has the samples 3 to 8; shard harmful/00001 has 4 to 8"),
        ({"stop": 9}, "has the samples 4 to 9"),
        ({"quarantined": {"8": "not finite"}}, "quarantines samples outside 4 to 8"),
        ({"quarantined": {"five": "not finite"}}, "is not a commit record: quarantined"),
        ({"checksums": {}}, "lists other arrays than the run has: resid_final, resid_pre"),
        ({"checksums": {"../x": "0"}}, "lists other arrays than the run has: ../x"),
        ({"index": "1"}, "is not a commit record: index: input should be a valid integer"),
        ({"batches": None}, "is not a commit record: batches"),
    ],
)
def test_a_record_that_contradicts_its_run_is_refused_even_with_a_right_checksum(store, fields, problem):
    record = store / SHARDS / "harmful/00001.json"
    before = record.read_bytes()
    change(record, **fields)
    assert problem in refusal(store)
    record.write_bytes(before)


@each(
    "content, problem",
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"{}", "has no checksum"),
    ],
)
def test_something_else_than_a_record_is_refused(store, content, problem):
    (store / SHARDS / "harmful/00001.json").write_bytes(content)
    assert f"tiny-0: shards/harmful/00001.json {problem}" in refusal(store)


def test_a_good_prompt_put_into_quarantine_is_noticed(store):
    file = store / SHARDS / "harmful/00001.json"
    record = json.loads(file.read_bytes())
    record["quarantined"]["6"] = "not finite"
    file.write_text(json.dumps(record))
    assert "shards/harmful/00001.json differs from its own checksum" in refusal(store)


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.data())
def test_no_flipped_bit_of_a_record_changes_what_is_read(whole, data):
    run = open_run(str(whole), "tiny-0")
    file = whole / SHARDS / "harmful/00001.json"
    content, expected = bytearray(file.read_bytes()), read_commits(run, "harmful")
    flipped = bytearray(content)
    flipped[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(flipped)
    read = None
    with suppress(RunDamagedError):
        read = read_commits(run, "harmful")
    file.write_bytes(content)
    assert read in (None, expected)  # 1e-05 and 1E-05 are the same number


def test_other_files_beside_the_records_are_named_and_harmless(store):
    folder = store / SHARDS
    expected = read_commits(open_run(str(store), "tiny-0"), "harmful")
    strangers = ["00003.json", "1.json", "notes.txt", "000001.json", "backup/00002.json"]
    strangers = [*(f"harmful/{name}" for name in strangers), "other/00000.json"]
    for name in strangers:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "harmful/00001.json", folder / name)
    run = open_run(str(store), "tiny-0")
    assert read_commits(run, "harmful") == expected
    assert unexpected_objects(run) == sorted(f"shards/{name}" for name in strangers)
    assert list(verify(run)) == ["results: none are finished (yet)"]


def test_what_an_analysis_left_behind_is_named_once_nothing_is_missing(tmp_path):
    run = finished_run(tmp_path, {"moments": {}, "curves": {}})
    key = "pending/effects.parts/old/refusal@-1/00000.npz"
    put(run.location, key, b"part")
    assert unexpected_objects(run) == [key]
    write_request(run, {"groups": {"effects": None}})
    assert unexpected_objects(run) == [], "the analysis may go on"
