"""The parts of an analysis of effects: what is written is read back, and every damage and every exchange is noticed."""

import numpy as np
import pytest

from theodolite.errors import StoreError
from theodolite.store.objects import get, keys, open_location, put
from theodolite_jobs.effects.part_store import PartStore
from theodolite_jobs.effects.work import EffectsWork, Vectors

RNG = np.random.default_rng(0)
NUMBERS = {"kl": np.arange(4.0)}


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def parts_of(label, n=64):
    return EffectsWork("d", {label: [(1,)] * n}, {}).parts(label)


@pytest.fixture
def location(tmp_path):
    return open_location(str(tmp_path / "run"), create=True)


@pytest.fixture
def store(location):
    return PartStore(location, "tiny-0", "d")


def test_vectors_are_read_back_and_a_damaged_object_is_named(store, location):
    vectors = Vectors(floats(2, 4), floats(2, 2, 4), floats(3, 2, 4), floats(3, 2, 4), floats(1, 4), (2,))
    store.write_vectors("a@-1", vectors)
    found = store.read_vectors("a@-1")
    assert found.score_layers == (2,)
    np.testing.assert_array_equal(found.matched, vectors.matched)
    (key,) = keys(location)
    put(location, key.replace("a@-1", "b@-1"), get(location, key))
    with pytest.raises(StoreError, match=r"b@-1/vectors\.npz is missing or damaged"):
        store.read_vectors("b@-1")


def test_a_part_is_stored_once_and_dropped_at_the_end(store, location):
    (part,) = parts_of("a@-1", 4)
    assert store.read_part(part) is None
    store.write_part(part, NUMBERS, full_route="")
    store.write_part(part, {"kl": np.arange(4.0) + 1}, full_route="")  # too late
    np.testing.assert_array_equal(store.read_part(part)["kl"], np.arange(4.0))
    other = PartStore(location, "tiny-0", "other")
    other.write_part(part, NUMBERS, full_route="")
    store.drop()
    assert store.read_part(part) is None
    assert other.read_part(part) is not None, "another driver still needs it"


def test_every_flipped_bit_of_a_part_is_noticed(store, location):
    (part,) = parts_of("a@-1", 4)
    store.write_part(part, NUMBERS, full_route="")
    (key,) = keys(location)
    content = get(location, key)
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        put(location, key, bytes(damaged))
        assert store.read_part(part) is None, f"bit {bit}"
    put(location, key, content[:-30])
    assert store.read_part(part) is None
    store.drop_part(part)
    assert keys(location) == []


def test_a_part_of_another_run_digest_contrast_or_range_is_not_read(store, location):
    first, second, *_ = parts_of("a@-1")
    store.write_part(first, NUMBERS, full_route="")
    (key,) = keys(location)
    content = get(location, key)
    (elsewhere, *_), (shorter,) = parts_of("b@-1"), parts_of("a@-1", 4)
    others = [(store, second), (store, elsewhere), (store, shorter)]
    others += [(PartStore(location, "tiny-0", "e"), first), (PartStore(location, "tiny-1", "d"), first)]
    for owner, part in others:
        put(location, owner._part_key(part), content)
        assert owner.read_part(part) is None
    assert store.read_part(first) is not None
