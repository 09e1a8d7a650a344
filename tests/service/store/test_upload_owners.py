"""Owners of uploads: each has its own record of a file, which stays until it has no owner."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.sealed import reseal

from theodolite.store.pieces import record
from theodolite.store.upload_owners import (
    expired_uploads,
    names_of,
    owned_uploads,
    owners_of,
    remove_upload,
    upload_sizes,
)
from theodolite.store.uploads import is_uploaded, read_upload, store_upload


@pytest.fixture
def store(tmp_path):
    return str(tmp_path)


def uploaded(store, content=b"one", owner="a"):
    return store_upload(store, content, "txt", owner).removeprefix("upload:")


def record_of(tmp_path, owner, name):
    return tmp_path / "upload-owners" / owner / f"{name}.json"


def test_an_upload_is_listed_with_its_size_and_its_time(store):
    before = datetime.now(UTC).replace(microsecond=0)
    first, second = uploaded(store, b"one"), uploaded(store, b"three", "b")
    (own,) = owned_uploads(store, "a")
    assert (own.name, own.owner, own.size) == (first, "a", 3)
    assert before <= own.uploaded <= datetime.now(UTC)
    assert {one.name for one in owned_uploads(store)} == {first, second}
    assert upload_sizes(store) == {first: 3, second: 5}
    assert names_of(store, "b") == {second}
    assert owned_uploads(store, "c") == []


def test_a_file_of_two_owners_stays_until_both_have_removed_it(store):
    name = uploaded(store)
    assert uploaded(store, owner="b") == name
    assert owners_of(store, name) == {"a", "b"}
    remove_upload(store, name, "a")
    assert (names_of(store, "a"), names_of(store, "b")) == (set(), {name})
    assert read_upload(store, name) == b"one"
    remove_upload(store, name, "b")
    assert not is_uploaded(store, name)
    assert owned_uploads(store) == []


def test_the_owner_of_another_file_cannot_remove_it(store):
    name = uploaded(store)
    remove_upload(store, name, "b")
    assert read_upload(store, name) == b"one"
    assert names_of(store, "a") == {name}


def test_a_removal_that_was_interrupted_can_be_repeated(store, tmp_path):
    name = uploaded(store)
    (tmp_path / "uploads" / name).unlink()
    (own,) = owned_uploads(store, "a")
    assert own.size is None
    remove_upload(store, name, "a")
    assert owned_uploads(store) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-9],
        lambda content: content.replace(b"upload-owners/a/", b"upload-owners/b/"),
        lambda content: json.dumps({**json.loads(content), "uploaded": "2000-01-01T00:00:00+00:00"}).encode(),
        lambda content: record("upload-owners/a/other.json", {"uploaded": "2000-01-01T00:00:00+00:00"}),
        lambda content: b"[1]",
    ],
)
def test_a_damaged_record_has_no_time_and_does_not_expire(store, tmp_path, damage):
    name = uploaded(store)
    file = record_of(tmp_path, "a", name)
    file.write_bytes(damage(file.read_bytes()))
    (own,) = owned_uploads(store, "a")
    assert (own.name, own.size, own.uploaded) == (name, 3, None)
    assert expired_uploads(store, 1) == []
    assert uploaded(store) == name  # writes the record again
    assert owned_uploads(store, "a")[0].uploaded is not None


def test_a_file_beside_the_records_is_ignored(store, tmp_path):
    name = uploaded(store)
    (tmp_path / "upload-owners" / "notes.txt").write_text("mine")
    assert [one.name for one in owned_uploads(store)] == [name]


def aged(tmp_path, owner, name, days):
    when = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")
    reseal(record_of(tmp_path, owner, name), uploaded=when)


def test_uploads_expire_by_owner_and_a_new_upload_starts_again(store, tmp_path):
    name, other = uploaded(store), uploaded(store, b"two")
    uploaded(store, owner="b")
    aged(tmp_path, "a", name, 31)
    aged(tmp_path, "a", other, 29)
    assert [(one.owner, one.name) for one in expired_uploads(store, 30)] == [("a", name)]
    uploaded(store)
    assert expired_uploads(store, 30) == []


def test_a_damaged_upload_is_replaced_by_the_same_file(store, tmp_path):
    name = uploaded(store)
    (tmp_path / "uploads" / name).write_bytes(b"two")
    assert uploaded(store) == name
    assert read_upload(store, name) == b"one"
