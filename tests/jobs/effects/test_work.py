"""The objects of an analysis of effects: what is written is read back, and damage is noticed."""

import numpy as np
import pytest

from theodolite.errors import StoreError
from theodolite.sites import Site
from theodolite.store.objects import get, keys, open_location, put
from theodolite_jobs.effects.work import (
    PART_PROMPTS,
    EffectsWork,
    Question,
    Vectors,
    drop_parts,
    read_part,
    read_vectors,
    write_part,
    write_vectors,
)

QUESTION = Question((Site.RESID_PRE,), (0, 2), (-1.0, 1.0), (1,), (2,), is_paired=True, has_parts=True)
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def location(tmp_path):
    return open_location(str(tmp_path / "run"), create=True)


def test_parts_cover_all_prompts_and_divide_no_pair():
    work = EffectsWork("d", {"a@-1": [(1, 2)] * 70}, {"a@-1": QUESTION})
    parts = work.parts("a@-1")
    assert [(part.start, part.stop) for part in parts] == [(0, 32), (32, 64), (64, 70)]
    assert PART_PROMPTS % 2 == 0
    assert work.plan("a@-1").n_samples == 70


def test_vectors_are_read_back_and_a_damaged_object_is_named(location):
    vectors = Vectors(floats(2, 4), floats(2, 2, 4), floats(3, 2, 4), floats(3, 2, 4), floats(1, 4), (2,))
    write_vectors(location, "d", "a@-1", vectors)
    found = read_vectors(location, "d", "a@-1")
    assert found.score_layers == (2,)
    np.testing.assert_array_equal(found.matched, vectors.matched)
    (key,) = keys(location)
    content = bytearray(get(location, key))
    content[len(content) // 2] ^= 1
    put(location, key, bytes(content))
    with pytest.raises(StoreError, match=r"vectors\.npz is missing or damaged"):
        read_vectors(location, "d", "a@-1")


def test_a_part_is_read_back_once_it_is_whole_and_dropped_at_the_end(location):
    (part,) = EffectsWork("d", {"a@-1": [(1,)] * 4}, {"a@-1": QUESTION}).parts("a@-1")
    assert read_part(location, "d", part) is None
    write_part(location, "d", part, {"kl": np.arange(4.0)}, full_route="")
    write_part(location, "d", part, {"kl": np.arange(4.0) + 1}, full_route="")  # too late
    np.testing.assert_array_equal(read_part(location, "d", part)["kl"], np.arange(4.0))
    (key,) = keys(location)
    put(location, key, get(location, key)[:-30])
    assert read_part(location, "d", part) is None
    drop_parts(location)
    assert keys(location) == []
