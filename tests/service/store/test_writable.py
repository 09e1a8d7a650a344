"""A store is checked before a survey: it must be writable, and create an object only once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.faulty_bucket import faulty_bucket

from theodolite.errors import StoreError
from theodolite.store.objects import keys, open_location
from theodolite.store.writable import check_writable

STORE = "s3://surveys/writable"


@pytest.fixture(scope="module")
def bucket():
    with faulty_bucket() as bucket, pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        yield bucket


@pytest.fixture(autouse=True)
def unchecked():
    check_writable.cache_clear()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/store"):
        check_writable(str(tmp_path / "file" / "store"))
    check_writable(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_bucket_that_creates_an_object_once_is_accepted_and_left_clean(bucket):
    with ThreadPoolExecutor(8) as pool:
        for check in [pool.submit(check_writable.__wrapped__, STORE) for _ in range(16)]:
            check.result()
    assert keys(open_location(STORE)) == []


def test_a_bucket_that_ignores_conditions_is_refused_and_left_clean(bucket, monkeypatch):
    monkeypatch.setattr(bucket, "conditions", "ignore")
    with pytest.raises(StoreError, match=r"surveys/writable, .* ignores the header `If-None-Match: \*`; use a server"):
        check_writable(STORE)
    assert keys(open_location(STORE)) == []


@pytest.mark.parametrize("setting", ["disabled", "etag-put"])
def test_a_setting_of_obstore_that_disables_conditions_is_refused(bucket, monkeypatch, setting):
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", setting)
    with pytest.raises(StoreError, match=r"AWS_CONDITIONAL_PUT|etag-put"):
        check_writable(STORE)


def test_a_bucket_that_refuses_conditions_is_refused_and_left_clean(bucket, monkeypatch):
    monkeypatch.setattr(bucket, "conditions", "refuse")
    with pytest.raises(StoreError, match="an object is created only once: the server does not implement this request"):
        check_writable(STORE)
    assert keys(open_location(STORE)) == []


def test_the_check_runs_once_in_a_process(bucket, monkeypatch):
    requests = []
    monkeypatch.setattr(bucket, "choose", lambda method, key: requests.append(method))
    check_writable(STORE)
    first = list(requests)
    check_writable(STORE)
    assert requests == first
    assert len(first) == 3
