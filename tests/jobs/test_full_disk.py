"""A full disk pauses the statistics, and other errors of the store end them."""

from collections import namedtuple
from errno import ENOSPC
from os import strerror

import pytest

from theodolite.errors import StoreError
from theodolite_jobs.full_disk import repeat_when_there_is_space

Usage = namedtuple("Usage", "total used free")
FULL = StoreError(f"cannot write COMPLETE: {strerror(ENOSPC)}")


def fails_first(errors):
    left = list(errors)

    def work():
        if left:
            raise left.pop(0)

    return work


def test_work_begins_again_each_time_the_disk_has_more_space(tmp_path, monkeypatch):
    free, said = iter([5, 5, 5, 8, 8, 7, 9]), []
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: Usage(10, 0, next(free)))
    repeat_when_there_is_space(fails_first([FULL, FULL]), str(tmp_path), said.append, pause=0)
    assert next(free, None) is None
    assert said == [f"the store is full, and the statistics go on when there is more space: {FULL}"] * 2


@pytest.mark.parametrize(
    ("store", "error"), [("folder", StoreError("cannot write: Permission denied")), ("s3://bucket", FULL)]
)
def test_another_error_or_a_bucket_ends_the_work(store, error):
    with pytest.raises(StoreError):
        repeat_when_there_is_space(fails_first([error]), store, print)
