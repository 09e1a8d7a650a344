"""Check reads and writes of objects in folders that do not exist."""

import pytest

from theodolite.errors import StoreError
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


def test_create_makes_a_missing_folder(tmp_path):
    location = open_location(str(tmp_path / "new"), create=True)
    assert put_new(location, "key", b"bytes")
    assert get(open_location(str(tmp_path / "new")), "key") == b"bytes"
