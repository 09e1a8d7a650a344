"""Check reads and writes of objects in folders that do not exist."""

import pytest
from obstore.exceptions import AlreadyExistsError

from theodolite.errors import LinkedObjectError, StoreError
from theodolite.store import objects
from theodolite.store.objects import (
    delete,
    folders,
    get,
    keys,
    move,
    open_location,
    open_zarr_store,
    put,
    put_new,
    version,
)


@pytest.fixture
def missing(tmp_path):
    return open_location(str(tmp_path / "missing"))


def test_a_missing_folder_reads_as_empty(missing, tmp_path):
    assert (get(missing, "key"), version(missing, "key"), keys(missing), folders(missing, "runs")) == (
        None,
        None,
        [],
        [],
    )
    assert open_zarr_store(str(tmp_path / "missing"), read_only=True).read_only
    assert not (tmp_path / "missing").exists()


def test_objects_after_a_missing_one_are_deleted_too(tmp_path):
    location = open_location(str(tmp_path))
    for key in ("a", "c", "d"):
        put(location, key, b"bytes")
    delete(location, ["a", "b", "c", "d"])
    assert keys(location) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda location: put(location, "key", b"bytes"),
        lambda location: put_new(location, "key", b"bytes"),
        lambda location: move(location, "other", "key"),
        lambda location: delete(location, ["key"]),
    ],
    ids=["put", "put_new", "move", "delete"],
)
def test_every_write_to_a_missing_folder_raises(missing, tmp_path, write):
    message = rf"cannot write key: there is no folder {tmp_path}/missing on node .+; share this folder with every node"
    with pytest.raises(StoreError, match=message):
        write(missing)
    assert not (tmp_path / "missing").exists()


def test_nothing_is_moved_or_deleted_through_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "thesis.txt").write_text("mine")
    location = open_location(str(tmp_path / "store"), create=True)
    (tmp_path / "store" / "linked").symlink_to(tmp_path / "outside")
    for write in (
        lambda: delete(location, ["other", "linked/thesis.txt"]),
        lambda: move(location, "linked/thesis.txt", "key"),
    ):
        with pytest.raises(LinkedObjectError, match="linked"):
            write()
    assert (tmp_path / "outside" / "thesis.txt").read_text() == "mine"


def test_create_makes_a_missing_folder(tmp_path):
    location = open_location(str(tmp_path / "new"), create=True)
    assert put_new(location, "key", b"bytes")
    assert get(open_location(str(tmp_path / "new")), "key") == b"bytes"


CONFLICT = AlreadyExistsError("409 ConditionalRequestConflict")


def in_conflict(monkeypatch, n_conflicts):
    """Let the first creations end with S3's answer while another request for the same key is in flight."""
    answers, create = [CONFLICT] * n_conflicts, objects.obstore.put

    def put_or_conflict(*arguments, **options):
        if answers and options.get("mode") == "create":
            raise answers.pop()
        return create(*arguments, **options)

    monkeypatch.setattr(objects.obstore, "put", put_or_conflict)
    monkeypatch.setattr(objects.time, "sleep", lambda _: None)


def test_a_conflict_without_an_object_is_not_taken_for_another_writer(tmp_path, monkeypatch):
    location = open_location(str(tmp_path / "store"), create=True)
    in_conflict(monkeypatch, 3)
    assert put_new(location, "key", b"ours")
    assert get(location, "key") == b"ours"
    in_conflict(monkeypatch, 1)
    assert not put_new(location, "key", b"theirs")
    assert get(location, "key") == b"ours"


def test_a_conflict_that_does_not_end_is_an_error_of_the_store(tmp_path, monkeypatch):
    location = open_location(str(tmp_path / "store"), create=True)
    in_conflict(monkeypatch, 100)
    with pytest.raises(StoreError, match=r"cannot write key: .*409"):
        put_new(location, "key", b"ours")
    assert get(location, "key") is None
