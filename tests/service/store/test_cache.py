"""What a long-lived reader keeps: never more than its bound, the longest unused goes first, whoever asks at once."""

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from theodolite.store.cache import Kept


def reader(log, value):
    def read():
        log.append(value)
        return value

    return read


def ask(kept, key, size=10, log=None):
    return kept.get(key, reader(log if log is not None else [], key), lambda _: size)


def test_what_was_read_is_not_read_again():
    kept, log = Kept(100), []
    for _ in range(3):
        assert ask(kept, "a", log=log) == "a"
    assert log == ["a"]
    assert kept.held_bytes == 10


def test_the_longest_unused_goes_first():
    kept, log = Kept(30), []
    for key in ("a", "b", "c", "a", "d"):  # a was used again, so b goes
        ask(kept, key, log=log)
    log.clear()
    for key in ("a", "c", "d"):
        ask(kept, key, log=log)
    assert log == []
    ask(kept, "b", log=log)
    assert log == ["b"]


def test_one_that_is_larger_than_all_is_not_kept_and_pushes_nothing_out():
    kept, log = Kept(30), []
    ask(kept, "a", log=log)
    for _ in range(2):
        assert ask(kept, "large", size=31, log=log) == "large"
    assert log == ["a", "large", "large"]
    ask(kept, "a", log=log)
    assert log.count("a") == 1
    ask(kept, "whole", size=30, log=log)
    assert kept.held_bytes == 30


def test_a_large_one_pushes_out_as_many_as_it_needs():
    kept = Kept(30)
    for key in ("a", "b", "c"):
        ask(kept, key)
    ask(kept, "d", size=15)
    assert kept.held_bytes == 25
    log = []
    ask(kept, "c", log=log)
    assert log == []


def test_nothing_is_kept_of_what_could_not_be_read():
    kept = Kept(100)

    def fail():
        raise ValueError("broken")

    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            kept.get("a", fail, lambda _: 10)
    assert kept.held_bytes == 0
    assert ask(kept, "a") == "a"


def test_a_bound_of_nothing_keeps_nothing():
    kept, log = Kept(0), []
    for _ in range(2):
        ask(kept, "a", size=1, log=log)
    assert log == ["a", "a"]


def test_values_that_are_false_are_kept_too():
    kept, log = Kept(100), []
    for value in (None, 0, "", []):
        for _ in range(2):
            assert kept.get(("key", repr(value)), reader(log, value), lambda _: 1) == value
    assert len(log) == 4


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), max_size=60), st.integers(0, 100))
def test_the_bound_holds_whatever_is_asked(asked, limit):
    kept, sizes, order = Kept(limit), {}, []
    for key, size in asked:
        ask(kept, key, size=sizes.setdefault(key, size))
        if sizes[key] <= limit:  # a plain model of the same
            order = [other for other in order if other != key] + [key]
            while sum(sizes[one] for one in order) > limit:
                order.pop(0)
        assert kept.held_bytes == sum(sizes[one] for one in order) <= limit
    log = []
    for key in order:
        ask(kept, key, size=sizes[key], log=log)
    assert log == []


def test_threads_get_what_they_asked_for_and_the_bound_holds():
    kept, start, wrong = Kept(200), threading.Barrier(8), []

    def go(seed):
        draw = random.Random(seed)
        start.wait()
        for _ in range(500):
            key = draw.randrange(40)
            if kept.get(key, lambda key=key: f"value {key}", lambda _: 10) != f"value {key}":
                wrong.append(key)
            if kept.held_bytes > 200 + 8 * 10:  # between a put and its making room, inside the lock
                wrong.append("bound")

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert kept.held_bytes <= 200
    assert kept.held_bytes == 10 * len(kept._values)


def test_a_slow_reader_does_not_make_others_wait():
    kept, begun, go_on = Kept(100), threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go_on.wait(10)
        return "slow"

    thread = threading.Thread(target=lambda: kept.get("slow", slow, lambda _: 1))
    thread.start()
    assert begun.wait(10)
    assert ask(kept, "fast") == "fast"
    go_on.set()
    thread.join()
    assert kept.get("slow", lambda: "again", lambda _: 1) == "slow"
