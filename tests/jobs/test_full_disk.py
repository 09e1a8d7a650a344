"""A full disk pauses the statistics, and other errors of the store end them."""

from errno import ENOSPC
from os import strerror

import pytest

from theodolite.errors import StoreError
from theodolite_jobs.full_disk import repeat_while_disk_is_full

FULL = StoreError(f"cannot write COMPLETE: {strerror(ENOSPC)}")


def test_work_begins_again_after_pauses_that_grow(monkeypatch):
    errors, slept, said = [FULL] * 8, [], []

    def work():
        if errors:
            raise errors.pop()

    monkeypatch.setattr("time.sleep", slept.append)
    repeat_while_disk_is_full(work, said.append)
    assert slept == [10, 20, 40, 80, 160, 320, 600, 600]
    assert said[1] == f"the store is full, and the statistics try again in 20 s: {FULL}"
    assert len(said) == 8


def test_another_error_of_the_store_ends_the_work(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: pytest.fail("waited"))

    def work():
        raise StoreError("cannot write COMPLETE: Permission denied")

    with pytest.raises(StoreError, match="Permission denied"):
        repeat_while_disk_is_full(work, pytest.fail)
