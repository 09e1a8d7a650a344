"""Threads that write shards: results by call, errors, and bounds on what is not written yet."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from theodolite_jobs.cluster.write_queue import MAX_SHARDS, WriteQueue

MAX_BYTES = 600

SECONDS = 60


def put(queue, call, write, n_bytes=1):
    with queue.slot(call) as slot:
        queue.reserve(slot, n_bytes)
        slot.write = write


@pytest.fixture
def held():
    """An event that writers wait for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def waiting():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_each_call_gets_the_result_of_its_shard_in_any_order(waiting):
    queue = WriteQueue(2, MAX_BYTES)
    early = waiting.submit(queue.result, 1)  # before the shard is captured
    for call in range(3):
        put(queue, call, lambda call=call: f"shard {call}")
    assert early.result(SECONDS) == "shard 1"
    assert [queue.result(call) for call in (2, 0)] == ["shard 2", "shard 0"]


def test_an_error_of_the_capture_or_of_the_writing_is_the_result():
    queue = WriteQueue(1, MAX_BYTES)
    with pytest.raises(ValueError, match="no tokens"), queue.slot(0):
        raise ValueError("no tokens")
    put(queue, 1, lambda: 1 / 0)
    with pytest.raises(ValueError, match="no tokens"):
        queue.result(0)
    with pytest.raises(ZeroDivisionError):
        queue.result(1)


@pytest.mark.parametrize(("n_bytes", "most"), [(1, MAX_SHARDS), (MAX_BYTES // 3, 3), (2 * MAX_BYTES, 1)])
def test_a_capture_waits_while_too_much_is_not_written(held, waiting, n_bytes, most):
    queue = WriteQueue(1, MAX_BYTES)
    for call in range(most):
        put(queue, call, held.wait, n_bytes)
    one_more = waiting.submit(put, queue, most, held.wait, n_bytes)
    with pytest.raises(TimeoutError):
        one_more.result(0.2)
    held.set()
    one_more.result(SECONDS)
    assert all(queue.result(call) for call in range(most + 1))


def test_a_failed_capture_and_a_rank_that_writes_nothing_free_their_space():
    queue = WriteQueue(1, MAX_BYTES)
    for call in range(2 * MAX_SHARDS):
        with suppress(ValueError), queue.slot(call) as slot:
            queue.reserve(slot, MAX_BYTES)
            raise ValueError("out")
        with queue.slot(-call) as slot:
            queue.reserve(slot, MAX_BYTES)
