"""The cache stays below its limit, evicts the least recently used entry first, and is thread-safe."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from theodolite.store.cache import Cache


def reader(log, value):
    def read():
        log.append(value)
        return value

    return read


def get(cache, key, size=10, log=None):
    return cache.get(key, reader(log if log is not None else [], key), lambda _: size)


def test_a_cached_value_is_not_read_again():
    cache, log = Cache(100), []
    for _ in range(3):
        assert get(cache, "a", log=log) == "a"
    assert log == ["a"]
    assert cache.used_bytes == 10


def test_the_least_recently_used_entry_is_evicted_first():
    cache, log = Cache(30), []
    for key in ("a", "b", "c", "a", "d"):  # a was used again, so b is evicted
        get(cache, key, log=log)
    log.clear()
    for key in ("a", "c", "d"):
        get(cache, key, log=log)
    assert log == []
    get(cache, "b", log=log)
    assert log == ["b"]


def test_a_value_over_the_limit_is_not_cached_and_evicts_nothing():
    cache, log = Cache(30), []
    get(cache, "a", log=log)
    for _ in range(2):
        assert get(cache, "large", size=31, log=log) == "large"
    assert log == ["a", "large", "large"]
    get(cache, "a", log=log)
    assert log.count("a") == 1
    get(cache, "whole", size=30, log=log)
    assert cache.used_bytes == 30


def test_a_large_value_evicts_as_many_entries_as_it_needs():
    cache = Cache(30)
    for key in ("a", "b", "c"):
        get(cache, key)
    get(cache, "d", size=15)
    assert cache.used_bytes == 25
    log = []
    get(cache, "c", log=log)
    assert log == []


def test_a_failed_read_is_not_cached():
    cache = Cache(100)

    def fail():
        raise ValueError("broken")

    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            cache.get("a", fail, lambda _: 10)
    assert cache.used_bytes == 0
    assert get(cache, "a") == "a"


def test_a_limit_of_zero_caches_nothing():
    cache, log = Cache(0), []
    for _ in range(2):
        get(cache, "a", size=1, log=log)
    assert log == ["a", "a"]


def test_falsy_values_are_cached():
    cache, log = Cache(100), []
    for value in (None, 0, "", []):
        for _ in range(2):
            assert cache.get(("key", repr(value)), reader(log, value), lambda _: 1) == value
    assert len(log) == 4


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), max_size=60), st.integers(0, 100))
def test_the_limit_holds_for_any_sequence_of_keys(requests, limit):
    cache, sizes, order = Cache(limit), {}, []
    for key, size in requests:
        get(cache, key, size=sizes.setdefault(key, size))
        if sizes[key] <= limit:  # a simple model of the cache
            order = [other for other in order if other != key] + [key]
            while sum(sizes[one] for one in order) > limit:
                order.pop(0)
        assert cache.used_bytes == sum(sizes[one] for one in order) <= limit
    log = []
    for key in order:
        get(cache, key, size=sizes[key], log=log)
    assert log == []


def test_threads_get_their_own_values_and_the_limit_holds():
    cache, start, wrong = Cache(200), threading.Barrier(8), []

    def go(seed):
        draw = random.Random(seed)
        start.wait()
        for _ in range(500):
            key = draw.randrange(40)
            if cache.get(key, lambda key=key: f"value {key}", lambda _: 10) != f"value {key}":
                wrong.append(key)
            if cache.used_bytes > 200:
                wrong.append("bound")

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.used_bytes <= 200
    assert cache.used_bytes == 10 * len(cache._entries)


def test_a_slow_read_does_not_block_other_threads():
    cache, has_started, go_on = Cache(100), threading.Event(), threading.Event()

    def slow():
        has_started.set()
        assert go_on.wait(60)
        return "slow"

    thread = threading.Thread(target=lambda: cache.get("slow", slow, lambda _: 1))
    thread.start()
    assert has_started.wait(60)
    assert get(cache, "fast") == "fast"
    go_on.set()
    thread.join()
    assert cache.get("slow", lambda: "again", lambda _: 1) == "slow"
