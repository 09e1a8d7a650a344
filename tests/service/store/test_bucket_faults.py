"""A bucket that refuses, delays, cuts off and repeats requests: no commit is lost, and none is doubled."""

import itertools
from contextlib import suppress

import numpy as np
import pytest
from support.each import each
from support.faulty_bucket import FAULTS, faulty_bucket
from support.stored import record_of

from theodolite.errors import StoreError
from theodolite.sites import Site
from theodolite.store.activations import encode_shard
from theodolite.store.checksums import sha256
from theodolite.store.commits import commit_shard, damages, drop_pending, new_attempt, recover
from theodolite.store.objects import get, keys, open_location, put_new
from theodolite.store.records import Commit
from theodolite.store.runs import create_run
from theodolite.submission.job_store import create_attempt

NUMBERS = itertools.count()
REQUESTS = [
    ("PUT", "pending"),  # the bytes of an attempt, and later the copies of the move
    ("PUT", "shards/set"),  # the commit record
    ("PUT", "activations.zarr"),
    ("POST", "delete"),
    ("DELETE", "pending"),
    ("GET", "shards/set"),
    ("GET", "list-type"),
]


@pytest.fixture(scope="module")
def bucket():
    with faulty_bucket() as bucket, pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        yield bucket


def empty_store(bucket):
    """Return the URL of an empty store, none of whose requests is disturbed."""
    bucket.choose = lambda _method, _key: None
    return f"{bucket.url}/{next(NUMBERS)}"


@pytest.fixture
def store(bucket):
    return empty_store(bucket)


def attempt():
    values = np.random.default_rng(0).normal(size=(2, 1, 3, 8)).astype(np.float32)
    encoded = {
        "resid_pre": encode_shard(Site.RESID_PRE, values, 0, 2),
        "resid_final": encode_shard(Site.RESID_FINAL, values[:, :, 0], 0, 2),
    }
    checksums = {name: sha256(content) for name, content in encoded.items()}
    return Commit("tiny-0", "set", 0, 0, 2, new_attempt(), checksums, [[0, 1]]), encoded


PAIRS = [(method, part, fault) for method, part in REQUESTS for fault in FAULTS]
DAILY = PAIRS[::5]  # every request and, as 5 does not divide their number, every fault
assert {fault for *_, fault in DAILY} == {*FAULTS}


def check_that_a_disturbed_request_loses_no_commit(bucket, method, part, fault):
    run = create_run(empty_store(bucket), record_of({"set": {"resid_pre": np.zeros((2, 1, 3, 8))}}, shard_prompts=2))
    bucket.once(method, part, fault)
    commit, encoded = attempt()
    if fault == "truncated":
        with suppress(StoreError):  # of an answer that cannot be read; a resume then knows what took effect
            commit_shard(run.location, commit, encoded)
    else:
        assert commit_shard(run.location, commit, encoded) == commit
    assert recover(run, "set") == {0: commit}
    assert list(damages(run, commit)) == []
    drop_pending(run)
    if fault != "lost delete":  # the next survey removes it
        assert keys(run.location, "pending") == []


@each("method, part, fault", DAILY)
def test_one_disturbed_request_loses_no_commit(bucket, method, part, fault):
    check_that_a_disturbed_request_loses_no_commit(bucket, method, part, fault)


@pytest.mark.nightly
@each("method, part, fault", [pair for pair in PAIRS if pair not in DAILY])
def test_no_disturbed_request_loses_a_commit(bucket, method, part, fault):
    check_that_a_disturbed_request_loses_no_commit(bucket, method, part, fault)


@each("fault", [fault for fault in FAULTS if fault != "truncated"])
def test_whoever_creates_an_object_knows_it(bucket, fault):
    store = empty_store(bucket)
    location = open_location(store)
    bucket.once("PUT", "claim", fault)
    assert put_new(location, "claim", b"mine")
    assert not put_new(location, "claim", b"yours")
    assert get(location, "claim") == b"mine"
    bucket.once("PUT", "attempts", fault)
    assert create_attempt(store, "0" * 64, 1, "local") is not None
    assert create_attempt(store, "0" * 64, 1, "local") is None


@pytest.mark.parametrize("fault", ["503 after", "reset after"])
def test_a_record_whose_every_answer_is_lost_is_the_attempts_own(bucket, store, fault):
    """The client repeats the creation, finds the record, and every answer about it is lost too for a while."""
    run = create_run(store, record_of({"set": {"resid_pre": np.zeros((2, 1, 3, 8))}}, shard_prompts=2))
    lost = iter([fault] * 3)
    bucket.choose = lambda method, key: next(lost, None) if method == "PUT" and "shards/set" in key else None
    commit, encoded = attempt()
    assert commit_shard(run.location, commit, encoded) == commit
    assert list(damages(run, commit)) == []
